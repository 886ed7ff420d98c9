"""Ends what is left of sandboxes whose job is over (promise 8): after a `kill -9` of the worker nobody else would.

At start and every period the folders of this node are asked for their owners, Redis for those jobs, and what nobody needs any more is
torn down. A sandbox is needed while the attempt that made it runs INIT, or its making is the environment the job goes on with; what nobody
needs once is never needed again. Without an answer from Redis nothing is judged, nor is a sandbox that was made after the question: only
those that were asked about and are over go. Any number of processes may sweep at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import redis
import structlog

from pipeline.errors import BrokerError
from pipeline.keys import Keys, run_of, shard_of
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from workers.sandbox.errors import SandboxGone
from workers.sandbox.process import owners, sweep
from workers.sandbox.spec import SandboxOwner

log = structlog.get_logger(__name__)

SHORTEST_PERIOD_S, LONGEST_PERIOD_S = 2.0, 30.0


class SandboxSweep:
    """Sweeps one node's sandboxes.

    Args:
        folder: where they are.
    """

    def __init__(self, client: AsyncClient, queue: QueueSettings, folder: Path) -> None:
        self._client = client
        self._queue = queue
        self._folder = folder
        self._period_s = min(LONGEST_PERIOD_S, max(SHORTEST_PERIOD_S, queue.lease_s))

    async def run(self, stop: asyncio.Event) -> None:
        """Sweeps until `stop` is set."""
        while not stop.is_set():
            try:
                await self.once()
            except (BrokerError, redis.RedisError, OSError) as error:
                log.warning("sandbox_sweep_failed", error=str(error))
            try:
                async with asyncio.timeout(self._period_s):
                    await stop.wait()
            except TimeoutError:
                continue

    async def once(self) -> int:
        """One sweep; returns how many sandboxes were removed."""
        if not self._folder.exists():
            return 0
        over = await self._over(await asyncio.to_thread(owners, self._folder))
        report = await sweep(self._folder, lambda owner: (owner.job_id, owner.attempt) not in over)
        if report.removed:
            log.info("sandboxes_swept", removed=len(report.removed))
        for failure in report.failed:
            if not isinstance(failure, SandboxGone):  # its own job, or another sweep, was first
                log.error("sandbox_not_removed", error=str(failure))
        return len(report.removed)

    async def _over(self, found: Sequence[SandboxOwner]) -> set[tuple[str, int]]:
        over = set()
        for owner in found:
            keys = Keys.of_shard(self._queue.namespace, shard_of(run_of(owner.job_id), self._queue.shards))
            state, stage, attempt, environment = await ask(self._client, "HMGET", keys.job(owner.job_id), "st", "stage", "att", "b.init")
            in_init = stage == Stage.INIT.value.encode() and attempt == str(owner.attempt).encode()
            if state in (None, b"done") or not (in_init or environment == str(owner.attempt).encode()):
                over.add((owner.job_id, owner.attempt))
        return over
