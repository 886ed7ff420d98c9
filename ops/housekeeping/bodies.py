"""The job `bodies`: what is left in Redis of jobs, groups and attempts that are gone, before its expiry.

Keys are found by SCAN and proposed to a script, which decides and removes in one step (`drop_unowned.lua`). Jobs, groups and templates are
proposed only where their run is gone, which is asked once a run: those of a run that lives are most of what there is.
"""

from __future__ import annotations

from functools import partial

from ops.housekeeping.places import Found, Workplace, leaving_room
from pipeline.keys import Keys, run_of
from pipeline.redis_client import AsyncClient, ask
from pipeline.redis_cluster import ClusterRedis
from pipeline.redis_slots import slot_of
from pipeline.scripts.retention_calls import KEYS_A_CALL

SCAN_COUNT = 500
OWNED_BY_RUN = ("j", "g", "tp")


async def sweep(place: Workplace) -> Found:
    """One pass over all shards."""
    seen = removed = freed = 0
    async with place.client() as client:
        for keys in place.shards():
            scripts = place.scripts(client, keys)
            proposed: list[str] = []
            living: dict[str, bool] = {}
            pattern = keys.key("[bgjt]*").replace("{", "[{]")
            node = await _node_of(client, keys)
            async for key in node.scan_iter(match=pattern, count=SCAN_COUNT):
                seen += 1
                short = keys.short(key.decode("utf-8", "replace"))
                if await _may_be_unowned(client, keys, short, living):
                    proposed.append(short)
                if len(proposed) == KEYS_A_CALL:
                    gone, size = await leaving_room(partial(scripts.drop_unowned, proposed))
                    removed, freed, proposed = removed + gone, freed + size, []
            if proposed:
                gone, size = await leaving_room(partial(scripts.drop_unowned, proposed))
                removed, freed = removed + gone, freed + size
    return {"seen": seen, "removed": removed, "freed_bytes": freed}


async def _node_of(client: AsyncClient, keys: Keys) -> AsyncClient:
    """Whoever has the shard: SCAN names no key, so in a Cluster it would go to some node."""
    return client.of_node(await client.owner(slot_of(keys.meta))) if isinstance(client, ClusterRedis) else client


async def _may_be_unowned(client: AsyncClient, keys: Keys, short: str, living: dict[str, bool]) -> bool:
    kind, _, rest = short.partition(":")
    if kind == "b":
        return True
    if kind not in OWNED_BY_RUN:
        return False
    run = run_of(rest.partition(":")[0])
    if run not in living:
        living[run] = bool(await ask(client, "EXISTS", keys.run(run), keys.open_units(run)))
    return not living[run]


__all__ = ["sweep"]
