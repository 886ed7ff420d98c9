"""Ends what is left of sandboxes whose job is over (promise 8): after a `kill -9` of the worker nobody else would.

At start and every period the folders of this node are asked for their owners, Redis for those jobs, and what nobody needs any more is
torn down. A sandbox is needed while the attempt that made it runs INIT, or its making is the environment the job goes on with (not to await
a reward); what nobody needs once is never needed again. Without an answer from Redis nothing is judged, nor is a sandbox that was made
after the question: only those that were asked about and are over go. Any number of processes may sweep at once.

A cancel ends jobs whose sandbox waits here for RUN, and nobody holds it (promise 4: it is gone within a second). So cancels are heard, and
the sandboxes of the jobs they mean are looked after until none of them is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import redis
import structlog

from pipeline.cancel import CancelMessage
from pipeline.errors import BrokerError
from pipeline.keys import Keys, run_of, shard_of
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from workers.sandbox.errors import SandboxGone
from workers.sandbox.local import owners, sweep
from workers.sandbox.spec import SandboxOwner

log = structlog.get_logger(__name__)

SHORTEST_PERIOD_S, LONGEST_PERIOD_S = 2.0, 30.0
GATHER_S = 0.25
"""Cancels that come within this time are looked after together. Who holds a sandbox ends it himself meanwhile."""
AFTER_CANCEL_S = (0.25, 0.5, 1.0, 2.0)
"""Pauses between the looks after cancels: the last is for a cancel of many thousand jobs."""


class SandboxSweep:
    """Sweeps one node's sandboxes.

    Args:
        folder: where they are.
    """

    def __init__(self, client: AsyncClient, queue: QueueSettings, folder: Path) -> None:
        self._client = client
        self._queue = queue
        self._folder = folder
        self._cancels: list[CancelMessage] = []
        self._wake = asyncio.Event()
        self._period_s = min(LONGEST_PERIOD_S, max(SHORTEST_PERIOD_S, queue.lease_s))

    def hear(self, message: CancelMessage) -> None:
        """Looks soon at the sandboxes of jobs that were cancelled."""
        self._cancels.append(message)
        self._wake.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Sweeps until `stop` is set."""
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
        """Until none of their sandboxes is left. What the last look leaves is found by the next sweep of all."""
        for pause_s in (0.0, *AFTER_CANCEL_S):
            await asyncio.sleep(pause_s)
            if not await self._try(cancels):
                return

    async def _try(self, cancels: Sequence[CancelMessage] | None = None) -> int:
        try:
            return await self.once(cancels)
        except (BrokerError, redis.RedisError, OSError) as error:
            log.warning("sandbox_sweep_failed", error=str(error))
            return 1

    async def once(self, cancels: Sequence[CancelMessage] | None = None) -> int:
        """One sweep, of all or of the jobs that some cancels mean; returns how many of those sandboxes were found."""
        if not self._folder.exists():
            return 0
        found = await asyncio.to_thread(owners, self._folder)
        if cancels is not None:
            found = [owner for owner in found if any(_means(message, owner) for message in cancels)]
        if not found and cancels is not None:
            return 0
        over = await self._over(found)
        report = await sweep(self._folder, lambda owner: (owner.job_id, owner.attempt) not in over)
        if report.removed:
            log.info("sandboxes_swept", removed=len(report.removed))
        for failure in report.failed:
            if not isinstance(failure, SandboxGone):  # its own job, or another sweep, was first
                log.error("sandbox_not_removed", error=str(failure))
        return len(found)

    async def _over(self, found: Sequence[SandboxOwner]) -> set[tuple[str, int]]:
        over = set()
        for owner in found:
            keys = Keys.of_shard(self._queue.namespace, shard_of(run_of(owner.job_id), self._queue.shards))
            state, stage, attempt, environment = await ask(self._client, "HMGET", keys.job(owner.job_id), "st", "stage", "att", "b.init")
            in_init = stage == Stage.INIT.value.encode() and attempt == str(owner.attempt).encode()
            if state in (None, b"awaiting", b"done") or not (in_init or environment == str(owner.attempt).encode()):
                over.add((owner.job_id, owner.attempt))
        return over


def _means(message: CancelMessage, owner: SandboxOwner) -> bool:
    job = owner.job_id
    return message.means(job, job.rpartition(".")[0], run_of(job), message.incarnation)
