"""The layout of the keys, agreed on by all processes of a namespace.

A process that believes in another number of shards would write to shards that nobody reads, and one that knows another layout would not
find what is there. The first process to come writes both into `meta` of shard 0; every other compares before it does anything else.
"""

from __future__ import annotations

from pipeline.errors import BrokerMisused
from pipeline.keys import LAYOUT_VERSION, Keys
from pipeline.redis_client import AsyncClient
from pipeline.scripts.runner import ScriptRunner
from pipeline.settings import QueueSettings


async def check_layout(client: AsyncClient, settings: QueueSettings) -> None:
    """Compares what this process believes with what stands in Redis; writes it when nothing does.

    Raises:
        BrokerMisused: they differ; says what to set.
        BrokerUnreachable: no contact.
    """
    run_script = ScriptRunner(client, Keys.of_shard(settings.namespace, 0))
    layout, shards = (_number(word) for word in await run_script("check_layout", LAYOUT_VERSION, settings.shards))
    if layout != LAYOUT_VERSION:
        raise BrokerMisused(
            f"namespace {settings.namespace!r} is laid out by version {layout}, this process knows {LAYOUT_VERSION}: run the same major "
            "version everywhere, or choose another ROLLSTREAM_NAMESPACE"
        )
    if shards != settings.shards:
        raise BrokerMisused(
            f"namespace {settings.namespace!r} has {shards} shards, this process is set to {settings.shards}: "
            f"set ROLLSTREAM_SHARDS={shards}, or choose another ROLLSTREAM_NAMESPACE"
        )


def _number(word: object) -> int:
    return int(word) if isinstance(word, bytes) and word.isdigit() else -1
