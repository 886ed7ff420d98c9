"""What a job of housekeeping works with: settings, and clients of the queue of rollouts, a shard at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from ops.housekeeping.settings import HousekeepingSettings
from pipeline.keys import Keys
from pipeline.layout import check_layout
from pipeline.redis_client import AsyncClient, command_client
from pipeline.scripts.retention_calls import RetentionScripts
from pipeline.settings import QueueSettings

Reply = TypeVar("Reply")
Found = dict[str, object]
"""What a job did, for people and programs: values that JSON knows."""
PAUSE = 3.0
"""After each call of a sweep Redis is left alone for so many times as long as it took: a sweep never has more than a quarter of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Settings of one run of a job.

    Args:
        dry_run: nothing is removed or written; what is answered is what would be.
    """

    queue: QueueSettings
    housekeeping: HousekeepingSettings
    dry_run: bool = False

    @asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncClient]:
        """A client of the queue of rollouts.

        Raises:
            LayoutMismatch, BrokerError
        """
        client = command_client(self.queue)
        try:
            await check_layout(client, self.queue)
            yield client
        finally:
            await client.aclose()

    def shards(self) -> Sequence[Keys]:
        """Keys of each shard."""
        return [Keys.of_shard(self.queue.namespace, shard) for shard in range(self.queue.shards)]

    def scripts(self, client: AsyncClient, keys: Keys) -> RetentionScripts:
        """What removes, on one shard."""
        return RetentionScripts(client, keys, dry_run=self.dry_run)


async def leaving_room(call: Callable[[], Awaitable[Reply]]) -> Reply:
    """One call to Redis, and then a pause (`PAUSE`)."""
    began = time.perf_counter()
    reply = await call()
    await asyncio.sleep(PAUSE * (time.perf_counter() - began))
    return reply


__all__ = ["Found", "Workplace", "leaving_room"]
