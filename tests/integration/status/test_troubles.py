"""`rollstream status` names the right cause: seventeen troubles, each staged on a real server, and a command that goes on from there."""

from __future__ import annotations

import shlex
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from typer.testing import CliRunner

from ops.cli.app import app
from ops.status.facts import Facts
from ops.status.look import look_and_judge
from ops.status.reach import PATIENCE_S
from ops.status.verdict import Judgement, Verdict
from ops.status.view import as_lines, as_map
from pipeline.inference_pool import PlacesOf, PoolPlaces
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask, command_client, redis_now_ms
from pipeline.samples import Sample
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer
from tests.integration.status import staging
from tests.integration.status.staging import Staged

pytestmark = pytest.mark.one_server
MakeServer = Callable[..., PrivateServer]
Trouble = Callable[[Staged], Awaitable[QueueSettings | None]]

ON_A_SHARED_SERVER: list[tuple[Callable[[Staged], Awaitable[None]], str, Verdict, str]] = [
    (staging.no_run_worker, "no_worker", Verdict.STOPPED, "stage RUN"),
    (staging.no_server, "no_server", Verdict.STOPPED, "run run1"),
    (staging.servers_paused, "servers_paused", Verdict.STOPPED, "trainer-1"),
    (staging.server_unsynced, "server_unsynced", Verdict.STOPPED, staging.SERVER),
    (staging.reserve_empty, "reserve_empty", Verdict.STOPPED, "run run1"),
    (staging.lane_orphaned, "lane_orphaned", Verdict.DEGRADED, "node n2"),
    (staging.fleet_gone, "fleet_gone", Verdict.STOPPED, "gpu7-4711"),
    (staging.image_missing, "image_missing", Verdict.DEGRADED, "docker://swebench/astropy:4"),
    (staging.node_degraded, "node_degraded", Verdict.STOPPED, "no user namespaces"),
    (staging.node_failed, "node_failed", Verdict.DEGRADED, "ago: run-0 crashed 6 times in a row: exit code 1; its last line: Mem"),
    (staging.poison_job, "poison_job", Verdict.DEGRADED, "run1.e0-i0.0"),
    (staging.clock_skew, "clock_skew", Verdict.DEGRADED, "90.0 s behind"),
]
ON_ITS_OWN_SERVER: list[tuple[Trouble, str, Verdict, str]] = [
    (staging.memory_full, "redis_memory_full", Verdict.DEGRADED, "16 MiB"),
    (staging.disk_full, "redis_disk_full", Verdict.STOPPED, "refuses all writes"),
    (staging.acl_without_info, "acl_too_narrow", Verdict.DEGRADED, "INFO"),
    (staging.acl_without_keys, "acl_too_narrow", Verdict.UNREACHABLE, "may not"),
    (staging.acl_of_a_worker, "acl_too_narrow", Verdict.DEGRADED, "user worker was refused the command xreadgroup"),
    (staging.wrong_password, "wrong_password", Verdict.UNREACHABLE, "user and password"),
]


async def look(settings: QueueSettings) -> tuple[Judgement, Facts | None]:
    """With patience: the machine is shared, and these servers answer."""
    return await look_and_judge(settings, patience_s=30.0)


def name_of(value: object) -> str:
    return getattr(value, "__name__", "") if callable(value) and not isinstance(value, type) else str(value)


async def staged_on(settings: QueueSettings) -> AsyncIterator[Staged]:
    client = command_client(settings)
    yield Staged(settings, client)
    await client.aclose()


def check(judgement: Judgement, cause: str, verdict: Verdict, word: str) -> None:
    """The first line has verdict, cause, what was seen, and a command that there is."""
    said_verdict, said_cause, what, then = judgement.first_line.split(" · ")

    assert (said_verdict, said_cause) == (verdict.value, cause), judgement.first_line
    assert word in what
    program, *words = shlex.split(then.removeprefix("next: "))
    assert program == "rollstream"
    helped = CliRunner().invoke(app, [*words[:2], "--help"])
    assert helped.exit_code == 0, f"{then}: {helped.output}"
    assert program in helped.output


@pytest.mark.parametrize(("trouble", "cause", "verdict", "word"), ON_A_SHARED_SERVER, ids=name_of)
async def test_a_trouble_is_named_in_the_first_line(
    trouble: Callable[[Staged], Awaitable[None]], cause: str, verdict: Verdict, word: str, settings: QueueSettings, client: AsyncClient
) -> None:
    await trouble(Staged(settings, client))

    judgement, facts = await look(settings)

    check(judgement, cause, verdict, word)
    assert facts is not None
    assert len(list(as_lines(judgement, facts))) > 8
    assert as_map(judgement, facts)["exit_code"] == verdict.exit_code


@pytest.mark.parametrize(("trouble", "cause", "verdict", "word"), ON_ITS_OWN_SERVER, ids=name_of)
async def test_a_trouble_of_the_server_or_its_users_is_named_in_the_first_line(
    trouble: Trouble, cause: str, verdict: Verdict, word: str, make_server: MakeServer
) -> None:
    server = make_server(extra=(("save", "3600 100000"),), maxmemory_bytes=16 << 20)
    settings = QueueSettings(redis_url=server.url)
    async with asynccontextmanager(staged_on)(settings) as staged:
        looker = await trouble(staged) or settings

        judgement, _ = await look(looker)

    check(judgement, cause, verdict, word)
    assert "secret" not in judgement.first_line


async def test_a_whole_pipeline_is_healthy_at_work_and_idle(settings: QueueSettings, client: AsyncClient) -> None:
    """A look that always finds something would pass every other test here."""
    idle, _ = await look(settings)
    staged = Staged(settings, client)
    await staged.begin()
    at_work, _ = await look(settings)

    assert idle.first_line == "healthy · idle: no run has work; 0 workers on 0 nodes"
    assert at_work.first_line == "healthy · 1 run with work, 4 jobs in flight; 3 workers on 1 node"
    assert idle.verdict.exit_code == at_work.verdict.exit_code == 0


@pytest.mark.parametrize(
    ("says", "told"),
    [
        ({"state": "failed", "failed": "run-0"}, True),
        ({"state": "up", "boot": "b1", "procs": "run-0:7:waiting"}, True),
        ({"state": "up", "boot": "b1", "procs": "run-0:7:up"}, False),
        ({"state": "ended"}, False),
    ],
)
async def test_no_worker_speaks_of_a_crash_that_is_not_mended(
    settings: QueueSettings, client: AsyncClient, says: dict[str, object], told: bool
) -> None:
    staged = Staged(settings, client)
    await staging.no_run_worker(staged)
    await staging.node_says(staged, {**staging.CRASHED, "failed": "", "lease": 24 * 3_600_000, **says})

    judgement, _ = await look(settings)

    assert judgement.troubles[0].cause == "no_worker"
    assert ("run-0 of node gpu7-4711 ended with 1: MemoryError" in judgement.first_line) is told


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ({"boot": "b", "lease": staging.LONG_MS}, Verdict.DEGRADED),
        ({"until": 1}, Verdict.HEALTHY),
        ({"failed": "", "why": "told to end; killed: run-0"}, Verdict.HEALTHY),
        ({"boot": "b", "lease": staging.LONG_MS, "state": "up", "failed": ""}, Verdict.HEALTHY),
    ],
    ids=["draining", "past_its_end", "killed_in_its_drain", "up_again"],
)
async def test_a_failed_node_is_a_trouble_while_it_is_missed(
    settings: QueueSettings, client: AsyncClient, said: dict[str, object], verdict: Verdict
) -> None:
    staged = Staged(settings, client)
    await staged.begin()
    await staging.node_says(staged, {**staging.CRASHED, **said})

    judgement, _ = await look(settings)

    assert judgement.verdict is verdict
    assert [trouble.cause for trouble in judgement.troubles] == (["node_failed"] if verdict is Verdict.DEGRADED else [])


@pytest.mark.parametrize(("acting", "held", "verdict"), [(0, 0, Verdict.HEALTHY), (1, 0, Verdict.STOPPED), (0, 3, Verdict.STOPPED)])
async def test_a_run_whose_jobs_call_no_model_needs_no_server(
    settings: QueueSettings, client: AsyncClient, acting: int, held: int, verdict: Verdict
) -> None:
    """From its first job on, and though other runs end jobs all the while, which tells nothing of this one."""
    staged = Staged(settings, client)
    await staging.no_server(staged)
    await PoolPlaces(client, settings.namespace).say(
        staging.RUN, "", "run-n1-0", PlacesOf(limit=4, bound=4, acting=acting, held=held), stands_ms=staging.LONG_MS
    )

    assert (await look(settings))[0].verdict is verdict


async def test_a_run_whose_jobs_end_without_a_server_needs_none(settings: QueueSettings, client: AsyncClient) -> None:
    staged = Staged(settings, client)
    await staging.no_server(staged)
    now_ms = await redis_now_ms(client)
    for sample in (Sample(now_ms - 120_000, 10, 0, (4, 4, 4)), Sample(now_ms, 10, 0, (9, 9, 9))):
        await ask(client, "LPUSH", staged.keys.samples, sample.line())

    judgement, facts = await look(settings)

    assert judgement.verdict is Verdict.HEALTHY
    assert facts is not None
    assert any("0.04" in line for line in as_lines(judgement, facts) if line.startswith("RUN")), "five jobs in two minutes"


async def test_what_explains_the_others_stands_first(make_server: MakeServer) -> None:
    """A disk that is full stops the workers: who starts new ones has mended nothing."""
    settings = QueueSettings(redis_url=make_server(extra=(("save", "3600 100000"),)).url)
    async with asynccontextmanager(staged_on)(settings) as staged:
        await staging.no_run_worker(staged)
        await staged.workers[Stage.INIT].renew(skew_ms=5000)
        await staging.refuse_writes(staged)

        judgement, _ = await look(settings)

    assert [trouble.cause for trouble in judgement.troubles] == ["redis_disk_full", "no_worker", "clock_skew"]


async def test_an_append_only_file_is_told_before_the_first_write(make_server: MakeServer) -> None:
    judgement, facts = await look(QueueSettings(redis_url=make_server(persistence="always").url))

    assert facts is not None
    assert [line.split(" · ")[0].strip() for line in as_lines(judgement, facts) if "append-only" in line] == [
        "append-only file 0 B, fsync always"
    ]


async def test_a_server_that_is_gone_is_unreachable(make_server: MakeServer) -> None:
    server = make_server()
    server.kill()

    judgement, facts = await look_and_judge(QueueSettings(redis_url=server.url))

    check(judgement, "redis_unreachable", Verdict.UNREACHABLE, str(server.socket))
    assert facts is None


async def test_a_server_that_accepts_and_does_not_answer_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        judgement, _ = await look_and_judge(QueueSettings(redis_url=f"redis://user:hidden@127.0.0.1:{silent.getsockname()[1]}/0"))

    check(judgement, "redis_unreachable", Verdict.UNREACHABLE, "127.0.0.1")
    assert "hidden" not in judgement.first_line


async def test_a_server_that_freezes_is_unreachable(make_server: MakeServer) -> None:
    server = make_server()
    server.freeze()
    try:
        judgement, _ = await look_and_judge(QueueSettings(redis_url=server.url))
    finally:
        server.thaw()

    check(judgement, "redis_unreachable", Verdict.UNREACHABLE, "no reply")


def test_what_is_waited_for_leaves_room_in_two_seconds_for_the_start_of_the_program() -> None:
    """A name or a connection, and then a reply that does not come."""
    assert 2 * PATIENCE_S < 2.0 - 0.3


async def test_a_name_that_no_resolver_knows_is_unreachable() -> None:
    judgement, _ = await look_and_judge(QueueSettings(redis_url="redis://no-such-host.invalid:6379/0"))

    check(judgement, "redis_unreachable", Verdict.UNREACHABLE, "no-such-host.invalid")


async def test_the_read_only_user_sees_what_an_administrator_sees(make_server: MakeServer) -> None:
    """All of it, but fsync and the disk, which hang on CONFIG."""
    from ops.redis.users import roles

    server = make_server()
    settings = QueueSettings(redis_url=server.url)
    async with asynccontextmanager(staged_on)(settings) as staged:
        await staging.no_run_worker(staged)
        ops = next(role for role in roles("rs") if role.name == "ops")
        as_ops = await staging.acl_user(staged, "ops", *ops.rules)

        seen, _ = await look(settings)
        judgement, facts = await look(as_ops)

    assert judgement.first_line == seen.first_line
    assert facts is not None
    assert facts.refused == ()
    assert facts.redis is not None
    assert facts.redis.fsync == ""
    assert [worker.stage for worker in facts.workers] == [Stage.EVAL, Stage.INIT]
