"""A trainer behind Sentinels, or in a Cluster, whose replica hears nothing for a while: what was done then, the next master never heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import wait_until
from tests.integration.trainer_client.pump import Pump, pumping
from tests.integration.trainer_client.rows import row_of
from tests.redis_sets import ClusterSet, Node, SentinelSet

RUN = "run1"
PATIENCE_S = 40.0


class JobsOf(set[str]):
    """The jobs of rows that a test picks."""

    def __init__(self, picks: Callable[[int], bool]) -> None:
        super().__init__()
        self._picks = picks

    def __contains__(self, job: object) -> bool:
        return self._picks(row_of(str(job)))


@dataclass
class Forgetful:
    """A supervisor and workers, and the servers that are about to lose a window. Nobody waits for the replica."""

    servers: SentinelSet | ClusterSet
    settings: QueueSettings
    client: AsyncClient
    pump: Pump

    @property
    def keys(self) -> Keys:
        return self.pump.scripts.keys

    @property
    def _master(self) -> Node:
        return self.servers.master_of(self.keys.meta) if isinstance(self.servers, ClusterSet) else self.servers.master

    @property
    def _replica(self) -> Node:
        return self.servers.replica_of(self._master) if isinstance(self.servers, ClusterSet) else self.servers.replica

    async def begin_window(self) -> None:
        """From here on the replica hears nothing; it has all that was written before."""
        master, replica = self._master, self._replica

        def is_level() -> bool:
            return replica.info("slave_repl_offset") == master.info("master_repl_offset") != ""

        await wait_until(is_level, "the replica has it all", timeout_s=PATIENCE_S)
        if isinstance(self.servers, ClusterSet):
            await asyncio.to_thread(self.servers.cut_off, master)
        else:
            await asyncio.to_thread(self.servers.cut_off)

    async def fail_over(self) -> None:
        """The master dies, and the replica takes its place with what it has."""
        servers, replica = self.servers, self._replica
        await asyncio.to_thread(self._master.kill)
        if isinstance(servers, ClusterSet):
            await asyncio.to_thread(servers.take_over, self._master)
        else:
            await asyncio.to_thread(servers.promote)
            await wait_until(lambda: servers.leads_to(replica), "the replica is promoted", timeout_s=PATIENCE_S)

    async def flying(self, groups: int) -> None:
        """Waits until so many groups are in flight."""

        async def enough() -> bool:
            return int(await ask(self.client, "ZCARD", self.keys.flying(RUN))) >= groups

        await wait_until(enough, f"{groups} groups fly", timeout_s=PATIENCE_S)


@asynccontextmanager
async def forgetful(servers: SentinelSet | ClusterSet) -> AsyncIterator[Forgetful]:
    """All of them at work while the block runs."""
    settings = QueueSettings(redis_url=servers.url, lease_s=3.0, retry_backoff_s=0.02, retry_backoff_max_s=0.2)
    stop = asyncio.Event()
    async with aclosing(command_client(settings)) as client:
        pump = Pump(Scripts(client, Keys.of_shard(settings.namespace, 0)))
        async with asyncio.TaskGroup() as tasks, pumping(pump):
            tasks.create_task(Supervisor(settings, name="s1", period_s=0.2).run(stop), name="supervisor")
            try:
                yield Forgetful(servers, settings, client, pump)
            finally:
                stop.set()
