"""Real failovers, found out and decided by the servers themselves, while jobs run: nothing is lost and nothing doubled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager

import pytest

from pipeline.redis_client import command_client
from pipeline.settings import QueueSettings
from pipeline.testing import ServerKind, wait_until
from tests.integration.redis_servers.patient_crew import PATIENCE_S, PatientCrew
from tests.redis_sets import ClusterSet, SentinelSet

pytestmark = [pytest.mark.one_server, pytest.mark.slow, pytest.mark.timeout(180)]
JOBS = 60
DEAD_AFTER_MS = 2_000


@asynccontextmanager
async def a_crew(url: str) -> AsyncIterator[PatientCrew]:
    """Members of all stages at work on jobs of one run."""
    settings = QueueSettings(redis_url=url, wait_replicas=1, lease_s=5.0, retry_backoff_s=0.02, retry_backoff_max_s=0.2)
    async with aclosing(command_client(settings)) as client:
        crew = PatientCrew(settings, client)
        await crew.connect()
        await crew.add(JOBS)
        crew.start_stages()
        await crew.results(JOBS // 4)
        yield crew
        await crew.leave()


async def all_ended_once(crew: PatientCrew) -> None:
    results = await crew.results(JOBS)
    assert len({record["job"] for record in results}) == len(results) == JOBS
    assert await crew.audit.all_ended("run1", crew.units) == []


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_sentinels_promote_the_replica_of_a_master_that_is(how: str, server_kind: ServerKind) -> None:
    """The frozen one wakes up as what it was, and is made a replica: what it was asked meanwhile, nobody was told done."""
    with ExitStack() as stack:
        watched = SentinelSet(server_kind, stack, dead_after_ms=DEAD_AFTER_MS)
        async with a_crew(watched.url) as crew:
            watched.master.kill() if how == "killed" else watched.master.freeze()
            await wait_until(lambda: watched.leads_to(watched.replica), "the replica is promoted", timeout_s=PATIENCE_S)
            watched.master.start() if how == "killed" else watched.master.thaw()
            await wait_until(lambda: watched.master.is_in_sync, "the old master is a replica", timeout_s=PATIENCE_S)
            await all_ended_once(crew)


async def test_a_cluster_promotes_the_replica_of_a_dead_master(server_kind: ServerKind) -> None:
    with ExitStack() as stack:
        cluster = ClusterSet(server_kind, stack, dead_after_ms=DEAD_AFTER_MS)
        async with a_crew(cluster.url) as crew:
            master = cluster.master_of(crew.keys.meta)
            master.kill()
            await wait_until(lambda: cluster.replica_of(master).is_master, "the replica is promoted", timeout_s=PATIENCE_S)
            master.start()
            await all_ended_once(crew)
