"""The whole pipeline, each process as the user of its role. The server's own log of refusals is empty afterwards: a right that is missing
fails the test, also where a refusal would be taken for an outage and waited out."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
import redis

from ops.housekeeping.jobs import JOBS
from ops.look import look
from ops.redis.acl import make_acl
from ops.redis.users import SENTINEL, password_file, roles
from ops.run_report import report_on
from pipeline.keys import Keys
from pipeline.messages import Grade
from pipeline.redis_client import command_client
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import PrivateServer, wait_in_thread
from tests.integration.stages.fleet import TASK, Fleet, Play
from tests.integration.trainer_client.rows import member_of, rows
from trainer_client import JobRequest, StepRequest, connect
from workers.handlers.base import EvalContext

RUN = "run1"
HOUSEKEEPING = """
from ops.housekeeping import HousekeepingQueue, HousekeepingSettings
from pipeline.settings import QueueSettings
queue = HousekeepingQueue(HousekeepingSettings.load(), QueueSettings.load())
job = queue.enqueue_image("prune")
queue.work("images", burst=True)
print(queue.result(job)[0])
"""
NOT_FOR_RQ = (
    ("HGETALL", "{rs:0}:meta"),
    ("XADD", "{rs:0}:s:init", "*", "job", "x"),
    ("XRANGE", "{rs:0}:s:results:run1", "-", "+"),
    ("DEL", "{rs:0}:meta"),
    ("RENAME", "rs:hk:x", "{rs:0}:meta"),
    ("PUBLISH", "{rs:0}:x", "1"),
    ("EVAL", "return redis.call('HGETALL', KEYS[1])", "1", "{rs:0}:meta"),
    ("EVAL", "return redis.call('SET', '{rs:0}:meta', '1')", "0"),
    ("SET", "rs:other", "1"),
    ("KEYS", "*"),
    ("CONFIG", "GET", "*"),
    ("ACL", "LIST"),
    ("FLUSHALL",),
    ("SHUTDOWN",),
)
"""What the user of housekeeping's queue may not do."""
As = Callable[[str], QueueSettings]


@pytest.fixture
def guarded(make_server: Callable[..., PrivateServer], tmp_path: Path) -> Iterator[tuple[As, redis.Redis]]:
    """Settings by user, and the administrator, as whom the default user stays on: this test looks at the server through it."""
    server = make_server()
    with redis.Redis.from_url(server.url) as admin:
        for line in make_acl(tmp_path, "rs", with_sentinel=True).lines:
            _, *words = line.split(" ")
            if words[0] != "default":
                admin.execute_command("ACL", "SETUSER", *words)

        def as_user(user: str) -> QueueSettings:
            return QueueSettings(redis_url=server.url, redis_user=user, redis_password_file=password_file(tmp_path, user), lease_s=2.0)

        yield as_user, admin


async def is_half_right(context: EvalContext) -> Grade:
    """Every group is informative."""
    return Grade(reward=float(member_of(context.spec.job) % 2), grader="play/1")


def refusals(admin: redis.Redis) -> list[str]:
    """What users were refused, as the server's log has it."""
    return [f"{row['username']}: {row['reason']} {row['object']}" for row in admin.acl_log()]


@pytest.mark.one_server
async def test_each_role_does_its_work_as_its_own_user_and_is_refused_nothing(guarded: tuple[As, redis.Redis], tmp_path: Path) -> None:
    as_user, admin = guarded
    stop = asyncio.Event()
    async with aclosing(command_client(as_user("worker"))) as client, aclosing(command_client(as_user("ops"))) as ops:
        fleet = Fleet(as_user("worker"), client, tmp_path)
        fleet.start(play=Play(on_evaluate=is_half_right))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Supervisor(as_user("supervisor"), name="s1", period_s=0.2).run(stop), name="supervisor")
            async with connect(as_user("trainer"), run=RUN) as run:
                await (await run.submit(JobRequest.parse({"task": TASK, "prompt": {"question": "?"}}))).result(timeout_s=40)
                run.feed(rows(8), shuffle_seed=1)
                async for step in run.steps(StepRequest(task=TASK, groups=2, n=2, ahead=1), start=1, count=2, timeout_s=40):
                    for group in step.groups:
                        await group.trajectories()
                    await step.ack()
                run.state_dict()
                cancelled = await run.submit(JobRequest.parse({"task": TASK, "prompt": {"question": "?"}}))
                await cancelled.cancel()
                await run.statistics()
                assert (await look(ops, as_user("ops"))).runs
                assert (await report_on(ops, as_user("ops"), Keys.of_shard("rs", 0), RUN)).look.name == RUN
            stop.set()
        await fleet.leave()
    assert refusals(admin) == []


@pytest.mark.one_server
@pytest.mark.timeout(150)
def test_housekeeping_works_as_its_own_user_and_sees_nothing_of_the_queue(guarded: tuple[As, redis.Redis], tmp_path: Path) -> None:
    as_user, admin = guarded
    settings = as_user("rq")
    environment = {
        "ROLLSTREAM_REDIS_URL": settings.redis_url,
        "ROLLSTREAM_REDIS_USER": "rq",
        "ROLLSTREAM_REDIS_PASSWORD_FILE": str(settings.redis_password_file),
        "ROLLSTREAM_STATE_DIR": str(tmp_path / "state"),
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-c", HOUSEKEEPING], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert refusals(admin) == []

    secret = password_file(tmp_path, "rq").read_text().strip()
    with redis.Redis.from_url(settings.redis_url, username="rq", password=secret) as rq, pytest.raises(redis.exceptions.NoPermissionError):
        rq.hgetall("{rs:0}:meta")


@pytest.mark.one_server
@pytest.mark.slow
@pytest.mark.timeout(150)
def test_every_job_of_housekeeping_is_done_with_its_queue_held_by_the_user_rq(guarded: tuple[As, redis.Redis], tmp_path: Path) -> None:
    """A replica as a site runs it: RQ as `rq`, what the jobs do in the queue of rollouts as `worker`. Nobody is refused anything."""
    as_user, admin = guarded
    rq, worker = as_user("rq"), as_user("worker")
    every = {f"ROLLSTREAM_HOUSEKEEPING_{name.upper().replace('-', '_')}_EVERY_S": "3600" for name in JOBS}
    environment = {
        **every,
        "ROLLSTREAM_REDIS_URL": worker.redis_url,
        "ROLLSTREAM_REDIS_USER": "worker",
        "ROLLSTREAM_REDIS_PASSWORD_FILE": str(worker.redis_password_file),
        "ROLLSTREAM_HOUSEKEEPING_REDIS_URL": rq.redis_url,
        "ROLLSTREAM_HOUSEKEEPING_REDIS_USER": "rq",
        "ROLLSTREAM_HOUSEKEEPING_REDIS_PASSWORD_FILE": str(rq.redis_password_file),
        "ROLLSTREAM_HOUSEKEEPING_GONE_RUN_KEEP_S": "3600",
        "ROLLSTREAM_HOUSEKEEPING_EXPORT_RUNS": '["swe-*"]',
        "ROLLSTREAM_HOUSEKEEPING_EXPORT_DIR": str(tmp_path / "exported"),
        **{f"ROLLSTREAM_{name}_DIR": str(tmp_path / name.lower()) for name in ("RUN", "DATA", "SCRATCH", "STATE")},
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
    }
    log = tmp_path / "replica.log"
    with log.open("wb") as out:
        replica = subprocess.Popen([sys.executable, "-m", "ops.cli", "housekeeping", "run"], env=environment, stdout=out, stderr=out)
    try:
        wait_in_thread(lambda: finished(admin) == set(JOBS), "each job was done", timeout_s=90)
        replica.terminate()
        assert replica.wait(45) == 0, log.read_text()
    finally:
        replica.kill()
        replica.wait()
    assert refusals(admin) == []

    secret = password_file(tmp_path, "rq").read_text().strip()
    assert secret not in log.read_text()
    with redis.Redis.from_url(rq.redis_url, username="rq", password=secret) as held:
        for words in NOT_FOR_RQ:
            with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)permission|NOPERM|can't|ACL failure"):
                held.execute_command(*words)


def finished(admin: redis.Redis) -> set[str]:
    """Jobs of housekeeping that came to a good end, by name."""
    found = [key for key in admin.scan_iter("rs:hk:job:*", count=1000) if admin.hget(key, "status") == b"finished"]
    names = [key.decode().removeprefix("rs:hk:job:") for key in found]
    return {job for job in JOBS if any(name.startswith(f"{job}-") for name in names)}


@pytest.mark.one_server
def test_lines_are_what_an_aclfile_takes_and_hold_no_password(make_server: Callable[..., PrivateServer], tmp_path: Path) -> None:
    """The server reads them from a file; a password that is there stays, so that the command can be run again."""
    made = make_acl(tmp_path / "secrets", "rs", with_sentinel=True)
    again = make_acl(tmp_path / "secrets", "rs", with_sentinel=True)
    assert again == made
    file = tmp_path / "users.acl"
    file.write_text("\n".join(["user default on nopass ~* &* +@all", *made.lines[1:]]) + "\n")
    server = make_server(extra=(("aclfile", str(file)),))
    with redis.Redis.from_url(server.url) as admin:
        assert set(admin.acl_users()) == {"default", SENTINEL.name, *(role.name for role in roles("rs"))}
    for path in made.password_files:
        assert path.read_text().strip() not in "\n".join(made.lines)
        assert path.stat().st_mode & 0o077 == 0
