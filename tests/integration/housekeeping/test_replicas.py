"""Replicas of housekeeping: ticks once, none leads, and the death of any costs nothing (docs/adr/0030-housekeeping.md)."""

from __future__ import annotations

import signal
import sys
import zlib
from pathlib import Path

import orjson
import pytest

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.testing import wait_in_thread

from .conftest import PATIENCE_S, Site

pytestmark = [pytest.mark.one_server, pytest.mark.slow]
OFTEN = {f"{name}_every_s": "1" for name in ("bodies", "streams", "dead_letters")}
SELDOM = dict.fromkeys((*OFTEN, "blobs_every_s", "leftovers_every_s", "images_every_s"), "0")

TICKS = """
import sys
from threading import Thread
from ops.housekeeping import HousekeepingQueue, HousekeepingSettings
from pipeline.settings import QueueSettings
queues = [HousekeepingQueue(HousekeepingSettings.load(), QueueSettings.load()) for _ in range(8)]
queues[0].import_rq()
from ops.housekeeping.cron import OurCron, entries
crons = [OurCron(queue, entries(queue), name=f"cron{number}", tend=lambda: None) for number, queue in enumerate(queues)]
for moment in (1_000_000.0, 1_000_000.5, 1_003_600.0):
    for cron in crons:
        cron._now_s = lambda: moment
    threads = [Thread(target=cron.enqueue_jobs) for cron in crons]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""

WORK = """
from ops.housekeeping import HousekeepingQueue, HousekeepingSettings
from pipeline.settings import QueueSettings
HousekeepingQueue(HousekeepingSettings.load(), QueueSettings.load()).work("housekeeping", burst=True)
"""


def test_crons_that_try_a_tick_at_once_enqueue_it_once(site: Site) -> None:
    done = site.program([sys.executable, "-c", TICKS], **{**SELDOM, "bodies_every_s": "3600", "leftovers_every_s": "3600", "node": "n.1"})

    assert done.returncode == 0, done.stderr
    assert site.rq_keys("job:*") == ["job:bodies-277", "job:bodies-278", "job:leftovers-n_1-277", "job:leftovers-n_1-278"]
    assert site.looker.llen(f"{site.prefix}:queue:housekeeping") == 2
    assert site.looker.llen(f"{site.prefix}:queue:node-n.1") == 2
    left_s = site.looker.ttl(f"{site.prefix}:job:bodies-277")
    assert 0 < left_s <= 3600, "what nobody begins within its period is not begun later"


def test_the_death_of_a_replica_costs_nothing_and_no_tick_runs_twice(site: Site) -> None:
    first, second = site.start(**SELDOM | OFTEN), site.start(**SELDOM | OFTEN)
    wait_in_thread(
        lambda: len(site.rq_keys("cron_scheduler:*")) == 2 and len(site.finished("bodies")) >= 2, "both run", timeout_s=PATIENCE_S
    )

    first.kill()
    first.wait()
    before = len(site.finished("bodies"))
    wait_in_thread(lambda: len(site.finished("bodies")) >= before + 3, "the other goes on", timeout_s=PATIENCE_S)
    listed = site.command("housekeeping", "list", "--json", **SELDOM | OFTEN)
    second.send_signal(signal.SIGTERM)

    assert second.wait(PATIENCE_S) == 0
    for name in ("bodies", "streams", "dead-letters"):
        assert {site.executions(job) for job in site.finished(name)} <= {1}
    assert listed.returncode == 0, listed.stderr
    jobs = {job["name"]: job for job in orjson.loads(listed.stdout)["jobs"]}
    assert jobs["bodies"]["last"][0]["state"] in ("finished", "started", "queued")
    assert jobs["images"]["last"] == []


async def test_a_job_whose_process_is_killed_is_done_again_by_rq(site: Site, client: AsyncClient, keys: Keys) -> None:
    for number in range(300):
        await ask(client, "SET", keys.key(f"b:gone.x.0.{number}:1:run"), "body", "EX", 600)
    once = site.home / "once"

    site.start(**SELDOM | {"bodies_every_s": "3600"}, ROLLSTREAM_FAILPOINT="drop_unowned", ROLLSTREAM_FAILPOINT_ONCE=str(once))
    wait_in_thread(lambda: len(site.finished("bodies")) == 1, "the job is done", timeout_s=PATIENCE_S)

    assert once.exists(), "it was killed in between"
    assert [key async for key in client.scan_iter(match=keys.key("b:*").replace("{", "[{]"))] == []


def test_rqs_own_tools_show_it(site: Site) -> None:
    replica = site.start(**SELDOM | {"streams_every_s": "3600"})
    wait_in_thread(lambda: len(site.finished("streams")) == 1, "a job is done", timeout_s=PATIENCE_S)

    shown = site.program([str(Path(sys.executable).parent / "rq"), "info", "--url", site.settings.redis_url, "--raw"])
    replica.send_signal(signal.SIGTERM)
    replica.wait(PATIENCE_S)

    assert shown.returncode == 0, shown.stderr
    assert "queue housekeeping 0, 0 executing, 1 finished, 0 failed" in shown.stdout
    assert "idle housekeeping. jobs: 1 finished, 0 failed" in shown.stdout


@pytest.mark.parametrize("field", ["data", "success_callback_name"])
def test_nothing_that_redis_names_is_run_or_imported(site: Site, field: str) -> None:
    """Who can write to the server could name any function, as the job or as what RQ calls when it has ended."""
    proof = site.home / "proof"
    (site.home / "evil.py").write_text(f"open({str(proof)!r}, 'w').close()\ndef act(*words): pass\n")
    site.program([sys.executable, "-c", TICKS], **{**SELDOM, "streams_every_s": "3600"})
    jobs = site.rq_keys("job:*")
    evil = zlib.compress(orjson.dumps(["evil.act", None, [], {}])) if field == "data" else b"evil.act"
    for job in jobs:
        site.looker.hset(f"{site.prefix}:{job}", mapping={field: evil, "failure_callback_name": b"evil.act"})

    worked = site.program([sys.executable, "-c", WORK], PYTHONPATH=str(site.home))

    assert worked.returncode == 0, worked.stderr
    assert not proof.exists()
    assert {site.status(job.removeprefix("job:")) for job in jobs} == {"failed" if field == "data" else "finished"}
