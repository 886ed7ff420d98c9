"""In a Cluster: runs spread over masters, a master dies, slots move, while jobs run (ADR 29, decision 5)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field

import pytest

from ops.redis.prompt import cli
from pipeline.errors import BrokerUnreachable
from pipeline.keys import Keys, shard_of
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask, command_client, redis_now_ms, thread_client
from pipeline.scripts import Scripts, ThreadScriptRunner
from pipeline.settings import QueueSettings
from pipeline.testing import QueueAudit, ServerKind
from tests.integration.pipeline.crew import passes
from tests.integration.redis_servers.patient_crew import PatientCrew
from tests.redis_sets import ClusterSet, Node

pytestmark = pytest.mark.one_server
SHARDS = 4


@dataclass
class Fleet:
    """Runs in all shards of a Cluster, each with jobs of its own, and members that serve them all."""

    cluster: ClusterSet
    settings: QueueSettings
    client: AsyncClient
    crew: PatientCrew
    jobs: dict[str, list[str]] = field(default_factory=dict)

    async def add(self, count: int) -> None:
        """So many jobs to each of as many runs as there are shards."""
        for run in one_run_a_shard(SHARDS):
            crew = PatientCrew(self.settings, self.client)
            crew.keys = self.keys(run)
            await crew.connect(run)
            self.jobs[run] = await crew.add(count, run=run)
            self.crew.units += crew.units

    def keys(self, run: str) -> Keys:
        """Of the run's shard."""
        return Keys.of_shard(self.settings.namespace, shard_of(run, SHARDS))

    def start(self) -> None:
        """A member of each stage."""
        for stage in Stage:
            self.crew.start(stage, passes, slots=8)

    async def ended(self, share: float = 1.0) -> None:
        """Until so much of each run has ended."""
        for run, jobs in self.jobs.items():
            await self.crew.results(int(len(jobs) * share), run=run)

    async def faults(self) -> list[str]:
        """What does not fit together in any shard."""
        found = []
        for run in self.jobs:
            units = [unit for unit in self.crew.units if unit.id.startswith(run + ".")]
            found += await QueueAudit(self.client, self.keys(run)).all_ended(run, units)
        return found


def one_run_a_shard(shards: int) -> Sequence[str]:
    """Names of runs, the first of each shard."""
    found: dict[int, str] = {}
    for number in range(1000):
        found.setdefault(shard_of(f"run{number}", shards), f"run{number}")
    return [found[shard] for shard in range(shards)]


@pytest.fixture
def cluster(server_kind: ServerKind, servers: ExitStack) -> ClusterSet:
    return ClusterSet(server_kind, servers)


@pytest.fixture
async def fleet(cluster: ClusterSet) -> AsyncIterator[Fleet]:
    settings = QueueSettings(
        redis_url=cluster.url, shards=SHARDS, wait_replicas=1, lease_s=5.0, retry_backoff_s=0.02, retry_backoff_max_s=0.2
    )
    async with aclosing(command_client(settings)) as client:
        crew = PatientCrew(settings, client)
        yield Fleet(cluster, settings, client, crew)
        await crew.leave()


async def test_shards_are_spread_over_masters_and_a_dead_master_is_followed_by_its_replica(fleet: Fleet) -> None:
    await fleet.add(12)
    fleet.start()
    await fleet.ended(0.25)
    assert len({fleet.cluster.master_of(fleet.keys(run).meta).port for run in fleet.jobs}) == 3
    dies = fleet.cluster.master_of(fleet.keys(one_run_a_shard(SHARDS)[0]).meta)
    dies.kill()
    fleet.cluster.take_over(dies)
    dies.start()  # as a replica: until there is one again nothing of its shard is answered

    await fleet.ended()

    assert await fleet.faults() == []


@pytest.mark.parametrize("way", ["key by key", "in one step"])
async def test_slots_that_move_while_jobs_run_lose_nothing(fleet: Fleet, way: str) -> None:
    """Key by key, the classic way: keys of one shard lie in two places for a while; no script runs meanwhile, and none stops half way. In
    one step, Valkey's way since 9: the target copies while the source serves, then the slot changes hands."""
    if way == "in one step" and not fleet.cluster.moves_in_one_step:
        pytest.skip("this server moves slots key by key only")
    move = fleet.cluster.move_in_one_step if way == "in one step" else fleet.cluster.move_key_by_key
    await fleet.add(12)
    fleet.start()
    await fleet.ended(0.25)
    for run in fleet.jobs:
        key = fleet.keys(run).meta
        await asyncio.to_thread(move, key, to=another(fleet.cluster, key))

    await fleet.ended()

    assert await fleet.faults() == []


async def test_while_a_slot_moves_no_script_runs_on_either_side_and_reads_wait(fleet: Fleet) -> None:
    """One that ran would find the keys that are still there, take the others for not there, and be stopped at the first that it writes."""
    await fleet.add(1)
    run = one_run_a_shard(SHARDS)[0]
    keys = fleet.keys(run)
    scripts = Scripts(fleet.client, keys)
    source, target = fleet.cluster.master_of(keys.meta), another(fleet.cluster, keys.meta)
    before = source.tell("HGETALL", keys.run(run))
    fleet.cluster.begin_move(keys.meta, source, target)
    with thread_client(fleet.settings) as thread:
        with pytest.raises(BrokerUnreachable):
            await scripts.run_script("touch_run", run, 1, tries=1)
        with pytest.raises(BrokerUnreachable):
            ThreadScriptRunner(thread, keys)("touch_run", run, 1)
        assert source.tell("HGETALL", keys.run(run)) == before

        fleet.cluster.move_keys(source, target, keys.meta, only=[keys.meta])  # where its first key is decides where a call goes
        with pytest.raises(BrokerUnreachable):
            await scripts.run_script("touch_run", run, 1, tries=1)
        with pytest.raises(BrokerUnreachable, match="is being moved"):
            await ask(fleet.client, "HGETALL", keys.meta)
        assert await ask(fleet.client, "HGETALL", keys.run(run))

        fleet.cluster.move_keys(source, target, keys.meta)
        fleet.cluster.end_move(keys.meta, target)
        await scripts.run_script("touch_run", run, 1)
        assert ThreadScriptRunner(thread, keys)("touch_run", run, 1)


async def test_what_is_about_no_key_and_what_is_about_many_finds_its_nodes(fleet: Fleet) -> None:
    await fleet.add(2)
    assert await redis_now_ms(fleet.client) > 0
    async with fleet.client.pipeline(transaction=False) as pipe:
        for run in fleet.jobs:
            pipe.hget(fleet.keys(run).run(run), "st")
            pipe.execute_command("HGET", fleet.keys(run).run(run), "inc")
        assert await pipe.execute() == [b"open", b"1"] * SHARDS
    for run in fleet.jobs:
        tag = fleet.keys(run).tag
        assert [key async for key in fleet.client.scan_iter(match=f"{tag}:r:*", count=100)] == [f"{tag}:r:{run}".encode()]


async def test_a_pipeline_finds_what_was_moved_and_keeps_its_order(fleet: Fleet) -> None:
    await fleet.add(1)
    runs = list(fleet.jobs)
    await ask(fleet.client, "PING")
    key = fleet.keys(runs[0]).meta
    await asyncio.to_thread(fleet.cluster.move_key_by_key, key, to=another(fleet.cluster, key))

    async with fleet.client.pipeline(transaction=False) as pipe:
        for run in runs:
            pipe.hget(fleet.keys(run).job(fleet.jobs[run][0]), "run")
            pipe.incr(fleet.keys(run).run(run))  # a key of another type
        replies = await pipe.execute(raise_on_error=False)

    assert replies[::2] == [run.encode() for run in runs]
    assert all("WRONGTYPE" in str(reply) for reply in replies[1::2])


def another(cluster: ClusterSet, key: str) -> Node:
    """A master that does not have the slot of a key."""
    return next(node for node in cluster.masters if node is not cluster.master_of(key))


def test_the_prompt_talks_to_the_node_of_shard_0(cluster: ClusterSet, capfd: pytest.CaptureFixture[str]) -> None:
    environ = {**os.environ, "ROLLSTREAM_REDIS_URL": cluster.url}
    assert cli(["--own", "HLEN", Keys.of_shard("rs", 0).meta], environ=environ) == 0
    assert capfd.readouterr().out.strip() == "0"
