"""How commands reach the queue: settings from environment and file, or the embedded server of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from pipeline.embedded import open_redis
from pipeline.keys import Keys, run_of, shard_of
from pipeline.redis_client import AsyncClient, command_client
from pipeline.settings import QueueSettings


@contextmanager
def queue_settings() -> Iterator[QueueSettings]:
    """The queue of this process; the embedded server is held for as long as the block runs."""
    settings = QueueSettings.load()
    if settings.redis_url:
        yield settings
        return
    with open_redis() as address:
        yield QueueSettings.load(redis_url=address.url)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[QueueSettings, AsyncClient]]:
    """A client for commands."""
    with queue_settings() as settings:
        client = command_client(settings)
        try:
            yield settings, client
        finally:
            await client.aclose()


def keys_of(settings: QueueSettings, unit: str) -> Keys:
    """The keys of the shard that holds a run, group or job."""
    return Keys.of_shard(settings.namespace, shard_of(run_of(unit), settings.shards))
