"""Pipelines with a trouble on real servers, scraped from the real exporter: the alert for it fires, and no other.

The answers of one scrape stand for an hour and more, and so does all that waits in the pipeline: with jobs in it, nothing settles.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ops.metrics.exporter import Exporter
from pipeline.inference_pool.pauses import PoolPauses
from pipeline.inference_pool.records import Server
from pipeline.messages import Outcome, Stage
from pipeline.redis_client import AsyncClient, ask, command_client, redis_now_ms
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer, a_settlement
from tests.integration.alerts.fired import fired
from tests.integration.metrics.test_exporter import a_node, an_exporter, scraped
from tests.integration.status import staging
from tests.integration.status.staging import LONG_MS, RUN, Staged

pytestmark = pytest.mark.one_server
MakeServer = Callable[..., PrivateServer]
Trouble = Callable[[Staged], Awaitable[object]]
TWO_HOURS_MS = 7_200_000
STANDS = "RollstreamNothingSettles"


async def idle(staged: Staged) -> None:
    await staged.begin(jobs=0)


async def engines_away(staged: Staged) -> None:
    """Jobs are at work, and their engines rest while the trainer trains."""
    await staged.begin()
    await staged.pool.attach(RUN, [Server(staging.SERVER)])
    await staged.at_run()
    pauses = PoolPauses(staged.client, staged.settings.namespace)
    await pauses.take(RUN, staged.incarnation, "trainer-1", why="away", mode="keep", to="", lease_s=3600)


async def paused_by_a_person(staged: Staged) -> None:
    await staged.begin()
    await ask(staged.client, "HSET", staged.keys.run(RUN), "paused", "1")


async def degraded(staged: Staged) -> None:
    await staged.begin(jobs=0)
    await a_node(staged, degraded="5 starts in a row failed", version="")


async def lost(staged: Staged) -> None:
    await staged.begin(jobs=0)
    await a_node(staged, beat=await redis_now_ms(staged.client) - TWO_HOURS_MS, lease=30_000, version="")


async def failed(staged: Staged) -> None:
    await staged.begin(jobs=0)
    await a_node(staged, boot="", state="failed", failed="run-0", version="")


async def two_versions(staged: Staged) -> None:
    await staged.begin(jobs=0)
    await a_node(staged)


async def unread(staged: Staged) -> None:
    """A record that its trainer has had for two hours; as it is written, but for its age."""
    await staged.begin(jobs=1)
    await staged.workers[Stage.INIT].settle(*await staged.workers[Stage.INIT].take())
    key = staged.keys.results(RUN)
    ((_, fields),) = await ask(staged.client, "XRANGE", key, "-", "+")
    await ask(staged.client, "DEL", key)
    words = [word for pair in fields.items() for word in pair]
    await ask(staged.client, "XADD", key, f"{await redis_now_ms(staged.client) - TWO_HOURS_MS}-0", *words)
    await ask(staged.client, "PEXPIRE", key, LONG_MS)


async def missing(staged: Staged) -> None:
    await staged.begin(jobs=0)
    await ask(staged.client, "HINCRBY", staged.keys.run(RUN), "accepted", 1)


async def doubled(staged: Staged) -> None:
    await staged.begin(jobs=0)
    await ask(staged.client, "HINCRBY", staged.keys.run(RUN), "out.ok", 1)


async def dead(staged: Staged) -> None:
    """Its workers died under the only job."""
    await staging.poison_job(staged)


TROUBLES: list[tuple[Trouble, set[str]]] = [
    (idle, set()),
    (engines_away, set()),
    (paused_by_a_person, set()),
    (staging.no_run_worker, {STANDS}),
    (staging.servers_paused, {STANDS}),
    (staging.reserve_empty, set()),  # its trainer feeds no prompts
    (dead, {"RollstreamDeadLetters"}),
    (staging.image_missing, {"RollstreamDeadLetters", STANDS}),
    (degraded, {"RollstreamNodeDegraded"}),
    (staging.node_degraded, {"RollstreamNodeDegraded", STANDS}),  # of a worker that no launcher started
    (failed, {"RollstreamNodeFailed"}),
    (lost, {"RollstreamNodeLost"}),
    (two_versions, {"RollstreamVersionMix"}),
    (unread, {"RollstreamResultsUnread"}),
    (missing, {"RollstreamJobsMissing"}),
    (doubled, {"RollstreamJobsDoubled"}),
]
ON_ITS_OWN_SERVER: list[tuple[Trouble, set[str]]] = [
    (staging.memory_full, {"RollstreamRedisMemoryFull", STANDS}),
    (staging.disk_full, {"RollstreamRedisUnwritable", STANDS}),
]


@asynccontextmanager
async def staged_on(server: PrivateServer) -> AsyncIterator[Staged]:
    settings = QueueSettings(redis_url=server.url)
    client = command_client(settings)
    yield Staged(settings, client)
    await client.aclose()


async def fired_for(exporter: Exporter, folder: Path) -> set[str]:
    found = await scraped(exporter)
    return fired(folder, found, found)


@pytest.mark.parametrize(("trouble", "alerts"), TROUBLES, ids=lambda value: getattr(value, "__name__", None))
async def test_an_alert_fires_for_its_trouble_and_no_other_does(
    settings: QueueSettings, client: AsyncClient, tmp_path: Path, trouble: Trouble, alerts: set[str]
) -> None:
    await trouble(Staged(settings, client))

    assert await fired_for(await an_exporter(settings), tmp_path) == alerts


@pytest.mark.parametrize(("trouble", "alerts"), ON_ITS_OWN_SERVER, ids=lambda value: getattr(value, "__name__", None))
async def test_an_alert_fires_for_the_trouble_of_a_server(
    make_server: MakeServer, tmp_path: Path, trouble: Trouble, alerts: set[str]
) -> None:
    async with staged_on(make_server(maxmemory_bytes=16 << 20, extra=(("save", "3600 100000"),))) as staged:
        exporter = await an_exporter(staged.settings)
        await trouble(staged)

        assert await fired_for(exporter, tmp_path) == alerts


async def test_a_server_that_is_gone_pages_once(make_server: MakeServer, tmp_path: Path) -> None:
    """Nothing else is said of a pipeline that nobody can see."""
    server = make_server()
    async with staged_on(server) as staged:
        await staged.begin()
        exporter = await an_exporter(staged.settings, patience_s=1.0)
        server.kill()

        assert await fired_for(exporter, tmp_path) == {"RollstreamRedisUnreachable"}


async def test_an_exporter_that_does_not_lead_tells_nobody_of_the_queue(
    settings: QueueSettings, client: AsyncClient, tmp_path: Path
) -> None:
    await idle(Staged(settings, client))
    leader, other = await an_exporter(settings), await an_exporter(settings)

    assert leader.leadership.leads
    assert (leader.leadership.leader_url, other.leadership.leader_url) == ("", leader.leadership.url)
    assert await fired_for(other, tmp_path) == {"RollstreamQueueUnwatched"}


async def test_an_eviction_pages(make_server: MakeServer, tmp_path: Path) -> None:
    """Of a server that may evict what expires soonest, as nobody should set one up."""
    async with staged_on(make_server(extra=(("maxmemory-policy", "volatile-ttl"),))) as staged:
        await idle(staged)
        exporter = await an_exporter(staged.settings)
        first = await scraped(exporter)
        used = int((await ask(staged.client, "INFO", "memory"))["used_memory"])
        await ask(staged.client, "CONFIG SET", "maxmemory", used + (4 << 20))
        for number in range(8):
            await ask(staged.client, "SET", staged.keys.key("b", "filler", number), b"x" * (1 << 20), "PX", 60_000)
        await ask(staged.client, "CONFIG SET", "maxmemory", 0)
        last = await scraped(exporter)

        assert fired(tmp_path, first, last) == {"RollstreamRedisEvictsKeys"}


async def test_failures_of_infrastructure_are_a_ticket_from_the_share_on_that_the_rule_names(
    settings: QueueSettings, client: AsyncClient, tmp_path: Path
) -> None:
    """Six of 306 jobs break, then two more; jobs that are cancelled make the share no smaller."""
    staged = Staged(settings, client)
    await staged.begin(jobs=420)
    await staged.scripts.admit([word.decode() for word in await ask(client, "SMEMBERS", staged.keys.key("classes"))], 420)
    init = staged.workers[Stage.INIT]
    exporter = await an_exporter(settings)
    before = await scraped(exporter)

    async def end(jobs: int, outcome: Outcome) -> None:
        held = await init.take(jobs)
        assert len(held) == jobs
        await init.settle(*held, settlement=a_settlement(outcome=outcome))

    await end(300, Outcome.OK)
    await end(6, Outcome.INFRA_FAILURE)
    few = await scraped(exporter)
    await end(2, Outcome.INFRA_FAILURE)
    await end(112, Outcome.CANCELLED)
    many = await scraped(exporter)

    # each was a dead letter too
    assert fired(tmp_path, before, few) == {"RollstreamDeadLetters"}
    assert fired(tmp_path, before, many) == {"RollstreamDeadLetters", "RollstreamInfraFailures"}
