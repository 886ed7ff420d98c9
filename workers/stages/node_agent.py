"""The part of the node agent that knows Redis: it tells the node's service which sandboxes nobody needs any more (promise 8).

At start and every period the service is asked for whom its sandboxes are, Redis for those jobs, and what is over is ended by the service. A
sandbox is needed while the attempt that made it is the job's latest, or has made the environment that the job goes on with (not to await a
reward); what nobody needs once is never needed again. Without an answer from Redis nothing is judged, nor is a sandbox that was made after
the question: only those that were asked about and are over go. Any number of processes may ask at once; each judges its own fleet's alone.

A cancel ends jobs whose sandbox waits here for RUN, and nobody holds it (promise 4: it is gone within a second). So cancels are heard, and
the sandboxes of the jobs they mean are looked after until none of them is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import redis
import structlog

from pipeline.cancel import CancelMessage
from pipeline.errors import BrokerError
from pipeline.keys import Keys, run_of, shard_of
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from workers.sandbox.errors import SandboxError
from workers.sandbox.service.node import EndReport, OwnedSandbox

log = structlog.get_logger(__name__)

SHORTEST_PERIOD_S, LONGEST_PERIOD_S = 2.0, 30.0
GATHER_S = 0.25
"""Cancels that come within this time are looked after together. Who holds a sandbox ends it himself meanwhile."""
AFTER_CANCEL_S = (0.25, 0.5, 1.0, 2.0)
"""Pauses between the looks after cancels: the last is for a cancel of many thousand jobs."""


class Service(Protocol):
    """What the agent needs of the node's service."""

    async def owned(self) -> Sequence[OwnedSandbox]:
        """The sandboxes that workers of this fleet made here."""

    async def end(self, sandbox_ids: Sequence[str], why: str) -> EndReport:
        """Ends sandboxes, whoever holds them."""


class NodeAgent:
    """Judges the sandboxes of one node.

    Args:
        service: that owns them.
    """

    def __init__(self, client: AsyncClient, queue: QueueSettings, service: Service) -> None:
        self._client = client
        self._queue = queue
        self._service = service
        self._cancels: list[CancelMessage] = []
        self._wake = asyncio.Event()
        self._period_s = min(LONGEST_PERIOD_S, max(SHORTEST_PERIOD_S, queue.lease_s))

    def hear(self, message: CancelMessage) -> None:
        """Looks soon at the sandboxes of jobs that were cancelled."""
        self._cancels.append(message)
        self._wake.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Judges until `stop` is set."""
        async with asyncio.TaskGroup() as tasks:
            after_cancels = tasks.create_task(self._after_cancels(), name="sandboxes-of-cancelled-jobs")
            while not stop.is_set():
                await self._try()
                try:
                    async with asyncio.timeout(self._period_s):
                        await stop.wait()
                except TimeoutError:
                    continue
            after_cancels.cancel()

    async def _after_cancels(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._wake.wait()
                await asyncio.sleep(GATHER_S)
                self._wake.clear()
                cancels, self._cancels = self._cancels, []
                tasks.create_task(self._look_after(cancels), name="sandboxes-of-some-cancels")

    async def _look_after(self, cancels: Sequence[CancelMessage]) -> None:
        """Until none of their sandboxes is left. What the last look leaves is found by the next look at all."""
        for pause_s in (0.0, *AFTER_CANCEL_S):
            await asyncio.sleep(pause_s)
            if not await self._try(cancels):
                return

    async def _try(self, cancels: Sequence[CancelMessage] | None = None) -> int:
        try:
            return await self.once(cancels)
        except (BrokerError, redis.RedisError, OSError, SandboxError) as error:
            log.warning("node_agent_failed", error=str(error))
            return 1

    async def once(self, cancels: Sequence[CancelMessage] | None = None) -> int:
        """One look, at all or at the jobs that some cancels mean; returns how many of those sandboxes were found."""
        found = await self._service.owned()
        if cancels is not None:
            found = [owned for owned in found if any(_means(message, owned) for message in cancels)]
        if found and (over := await self._over(found)):
            report = await self._service.end(over, "its job is over")
            log.info("sandboxes_ended", ended=len(report.ended))
            for sandbox_id, why in report.failed.items():
                log.error("sandbox_not_removed", sandbox=sandbox_id, error=why)
        return len(found)

    async def _over(self, found: Sequence[OwnedSandbox]) -> list[str]:
        over = []
        for owned in found:
            keys = Keys.of_shard(self._queue.namespace, shard_of(run_of(owned.job_id), self._queue.shards))
            state, attempt, environment = await ask(self._client, "HMGET", keys.job(owned.job_id), "st", "att", "b.init")
            if state in (None, b"awaiting", b"done") or str(owned.attempt).encode() not in (attempt, environment):
                over.append(owned.sandbox_id)
        return over


def _means(message: CancelMessage, owned: OwnedSandbox) -> bool:
    job = owned.job_id
    return message.means(job, job.rpartition(".")[0], run_of(job), message.incarnation)
