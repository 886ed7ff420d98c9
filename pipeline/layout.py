"""The layout of the keys, agreed on by all processes of a namespace.

A process that believes in another number of shards would write to shards that nobody reads, and one that knows another layout would not
find what is there. The first process to come writes both into `meta` of shard 0; every other compares before it does anything else.
"""

from __future__ import annotations

import re
import secrets

from pipeline.errors import BrokerMisused
from pipeline.keys import LAYOUT_VERSION, Keys
from pipeline.redis_client import AsyncClient
from pipeline.scripts.runner import ScriptRunner
from pipeline.settings import QueueSettings

FLEET = re.compile(r"[0-9a-f]{12}")


async def check_layout(client: AsyncClient, settings: QueueSettings) -> str:
    """Compares what this process believes with what stands in Redis; writes it when nothing does.

    Returns:
        The word of this fleet: two namespaces, or two servers, never have the same. What workers keep on a node's disk stands below it.

    Raises:
        BrokerMisused: they differ; says what to set.
        BrokerUnreachable: no contact.
    """
    run_script = ScriptRunner(client, Keys.of_shard(settings.namespace, 0))
    reply = await run_script("check_layout", LAYOUT_VERSION, settings.shards, secrets.token_hex(6))
    layout, shards = _number(reply[0]), _number(reply[1])
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
    fleet = reply[2].decode("ascii", "replace") if isinstance(reply[2], bytes) else ""
    if not FLEET.fullmatch(fleet):
        raise BrokerMisused(f"namespace {settings.namespace!r}: field `fleet` of its meta key is {fleet!r}, expected twelve hex digits")
    return fleet


def _number(word: object) -> int:
    return int(word) if isinstance(word, bytes) and word.isdigit() else -1
