"""All that the pool knows of a run, read with plain commands: who may only read sees it too.

What a server says of itself may be missing: a look comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from pipeline.inference_pool.labels import AllowedLabels, is_updating
from pipeline.inference_pool.records import ControlledBy, Pause, PoolState, ServerState, Standing
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask, redis_now_ms
from pipeline.together import together


async def read_state(client: AsyncClient, keys: Keys, run: str) -> PoolState:
    """The state of a run. Not one moment: servers are read one by one."""
    now_ms = await redis_now_ms(client)
    fields = _texts(await ask(client, "HGETALL", keys.pool_run(run)))
    urls = sorted(url.decode() for url in await ask(client, "SMEMBERS", keys.pool_servers(run)))
    pause = _pause(fields)
    label = fields.get("ver", "")
    lapsed_to = pause.to if pause is not None and pause.until_ms <= now_ms else ""
    allowed = AllowedLabels(label, (lapsed_to or label) if label else "")
    return PoolState(
        run=run,
        now_ms=now_ms,
        allowed=allowed,
        pause=pause,
        rerouted=int(fields.get("rerouted", "0")),
        lost_tokens=int(fields.get("lost_tokens", "0")),
        aborted=int(fields.get("aborted", "0")),
        servers=tuple(await together(*(_server(client, keys, run, url, now_ms, allowed) for url in urls))),
    )


def _texts(found: Mapping[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in found.items()}


def _pause(fields: Mapping[str, str]) -> Pause | None:
    if not fields.get("pause"):
        return None
    return Pause(
        holder=fields["pause"],
        why=fields.get("pause.why", ""),
        mode=fields.get("pause.mode", ""),
        to=fields.get("pause.to", ""),
        since_ms=int(fields.get("pause.since", "0")),
        until_ms=int(fields.get("pause.until", "0")),
    )


async def _server(client: AsyncClient, keys: Keys, run: str, url: str, now_ms: int, allowed: AllowedLabels) -> ServerState:
    said = _texts(await ask(client, "HGETALL", keys.pool_server(run, url)))
    jobs = await ask(client, "ZCOUNT", keys.pool_leases(run, url), now_ms, "+inf")
    in_flight = await ask(client, "HVALS", keys.pool_calls(run, url))
    to_abort = await ask(client, "HLEN", keys.pool_aborts(run, url))
    version, shared = said.get("ver", ""), said.get("shared") == "1"
    draining, is_down = said.get("state") == "draining", said.get("alive") == "0"
    standing: Standing = "draining" if draining else "up"
    if is_down:
        standing = "down"
    elif not shared and (is_updating(version) or not (allowed.any or version in (allowed.lowest, allowed.highest))):
        standing = "unsynced"
    return ServerState(
        url=url,
        model=said.get("model", ""),
        control=cast(ControlledBy, said.get("control", "ops")),
        kind=said.get("kind", ""),
        shared=shared,
        standing=standing,
        draining=draining,
        version=version,
        since_ms=int(said.get("failing" if is_down and "failing" in said else "since", "0")),
        why=said.get("why", ""),
        engine_paused=said.get("paused") == "1",
        started=said.get("started", ""),
        running=int(said.get("running", "0")),
        waiting=int(said.get("waiting", "0")),
        kv_used=float(said.get("kv", "-1")),
        looked_ms=int(said.get("looked", "0")),
        seen_ms=int(said.get("seen", "0")),
        jobs=int(jobs),
        calls=sum(len(ids.split()) for ids in in_flight),
        to_abort=int(to_abort),
    )
