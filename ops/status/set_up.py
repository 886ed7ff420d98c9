"""How the servers stand together that the address names: masters, their replicas, Sentinels, slots. Nothing is judged here.

Each server is asked by itself and none is waited for longer than `PATIENCE_S`, so this can be read also while the pipeline cannot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import redis
import redis.asyncio

from pipeline.errors import BrokerError
from pipeline.keys import Keys
from pipeline.redis_address import Node, SetUp, parse_redis_url
from pipeline.redis_client import AsyncClient, ask, sentinels_of
from pipeline.redis_cluster import ClusterRedis
from pipeline.redis_sentinel import ask_sentinel
from pipeline.redis_slots import SLOTS, slot_of
from pipeline.settings import QueueSettings

PATIENCE_S = 0.5
"""For all of it, since all are asked at once: with what came before it, `status` is to be through in two seconds."""
DOWN = ("s_down", "o_down", "disconnected")
"""Flags of a server that a Sentinel does not reach."""
_NO_ANSWER = (BrokerError, redis.RedisError, OSError, TimeoutError)
Found = TypeVar("Found")
Slots = tuple[int, int]
"""First and last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterFacts:
    """One master."""

    address: str
    answers: bool
    replicas: int | None
    """Online now, as it says itself; None = it does not say, or not to this user."""
    replicas_known: Sequence[str] = ()
    """Those that others know of it and take for well."""
    slots: Sequence[Slots] = ()
    """Of a Cluster."""
    shards: Sequence[int] = ()
    """Of ours that it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelFacts:
    """One Sentinel of the address."""

    address: str
    fault: str = ""
    """Why it is of no use; empty = it watches the master."""
    sees_master_down: bool = False
    others: int = 0
    """Sentinels that it knows beside itself."""
    quorum: int = 0
    replicas_down: Sequence[str] = ()
    replicas_up: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUpFacts:
    """All of them."""

    set_up: SetUp
    name: str = ""
    """Of the master, as Sentinels know it."""
    wait_replicas: int
    masters: Sequence[MasterFacts] = ()
    sentinels: Sequence[SentinelFacts] = ()
    unserved: Sequence[Slots] = ()
    """Slots that no master has."""
    unserved_shards: Sequence[int] = ()
    map_is_known: bool = True
    """Whether a node of the Cluster told who has which slots."""


async def read_set_up(client: AsyncClient, settings: QueueSettings) -> SetUpFacts:
    """Reads them all. Never raises for what a server does."""
    servers = parse_redis_url(settings.redis_url)
    if servers.set_up is SetUp.CLUSTER and isinstance(client, ClusterRedis):
        return await _cluster(client, settings, servers.nodes)
    if servers.set_up is SetUp.SENTINEL:
        return await _behind_sentinels(client, settings, servers.nodes, servers.master)
    master = await _master(client, address="")
    return SetUpFacts(set_up=SetUp.SINGLE, wait_replicas=settings.wait_replicas, masters=(master,))


async def _in_time(call: Awaitable[Found]) -> Found:
    async with asyncio.timeout(PATIENCE_S):
        return await call


async def _master(client: AsyncClient, *, address: str, **more: Any) -> MasterFacts:  # Any: fields of the facts, passed on
    try:
        info: Any = await _in_time(ask(client, "INFO", "replication"))  # Any: a map of mixed values
    except redis.ResponseError:
        return MasterFacts(address=address, answers=True, replicas=None, **more)
    except _NO_ANSWER as error:
        is_refusal = isinstance(error, BrokerError) and "may not" in str(error)
        return MasterFacts(address=address, answers=is_refusal, replicas=None, **more)
    online = [name for name, row in info.items() if name.startswith("slave") and isinstance(row, Mapping) and row.get("state") == "online"]
    return MasterFacts(address=address, answers=True, replicas=len(online), **more)


# ---- Sentinels


async def _behind_sentinels(client: AsyncClient, settings: QueueSettings, nodes: Sequence[Node], name: str) -> SetUpFacts:
    known = sentinels_of(settings)
    asked, own = await asyncio.gather(asyncio.gather(*(_sentinel(settings, node) for node in nodes)), _master(client, address=""))
    addresses = [address for _, address in asked if address]
    address = max(addresses, key=addresses.count, default="")
    sentinels = tuple(facts for facts, _ in asked)
    up = dict.fromkeys(replica for facts in sentinels for replica in facts.replicas_up)
    down = {replica for facts in sentinels for replica in facts.replicas_down}
    master = MasterFacts(
        address=address, answers=own.answers, replicas=own.replicas, replicas_known=[replica for replica in up if replica not in down]
    )
    return SetUpFacts(
        set_up=SetUp.SENTINEL, name=known.master, wait_replicas=settings.wait_replicas, masters=(master,), sentinels=sentinels
    )


async def _sentinel(settings: QueueSettings, node: Node) -> tuple[SentinelFacts, str]:
    """What it says, and whom it names."""
    address, known = _text_of(node), sentinels_of(settings)
    try:
        rows = [await _in_time(ask_sentinel(known, node, "SENTINEL", word)) for word in ("MASTER", "REPLICAS")]
    except _NO_ANSWER as error:
        return SentinelFacts(address=address, fault=str(error) or f"no answer within {PATIENCE_S:g} s"), ""
    master, replicas = _fields(rows[0]), [_fields(row) for row in rows[1]]
    is_down = {f"{row['ip']}:{row['port']}": any(flag in row["flags"].split(",") for flag in DOWN) for row in replicas}
    facts = SentinelFacts(
        address=address,
        sees_master_down=any(flag in master["flags"].split(",") for flag in DOWN),
        others=int(master.get("num-other-sentinels", 0)),
        quorum=int(master.get("quorum", 0)),
        replicas_down=[replica for replica, down in is_down.items() if down],
        replicas_up=[replica for replica, down in is_down.items() if not down],
    )
    return facts, f"{master['ip']}:{master['port']}"


def _fields(row: Sequence[bytes]) -> dict[str, str]:
    words = [word.decode("utf-8", "replace") for word in row]
    return dict(zip(words[::2], words[1::2], strict=True))


# ---- a Cluster


async def _cluster(client: ClusterRedis, settings: QueueSettings, seeds: Sequence[Node]) -> SetUpFacts:
    rows = await _slot_rows(client, seeds)
    if rows is None:
        return SetUpFacts(set_up=SetUp.CLUSTER, wait_replicas=settings.wait_replicas, map_is_known=False)
    of_shards = {shard: slot_of(Keys.of_shard(settings.namespace, shard).meta) for shard in range(settings.shards)}
    slots: dict[Node, list[Slots]] = {}
    replicas: dict[Node, dict[str, None]] = {}
    for first, last, master, *others in rows:
        node = _node(master)
        slots.setdefault(node, []).append((int(first), int(last)))
        replicas.setdefault(node, {}).update(dict.fromkeys(_text_of(_node(other)) for other in others))
    masters = await asyncio.gather(
        *(
            _master(
                client.of_node(node),
                address=_text_of(node),
                replicas_known=list(replicas[node]),
                slots=ranges,
                shards=_within(of_shards, ranges),
            )
            for node, ranges in slots.items()
        )
    )
    unserved = _gaps(sorted(part for ranges in slots.values() for part in ranges))
    return SetUpFacts(
        set_up=SetUp.CLUSTER,
        wait_replicas=settings.wait_replicas,
        masters=masters,
        unserved=unserved,
        unserved_shards=_within(of_shards, unserved),
    )


async def _slot_rows(client: ClusterRedis, seeds: Sequence[Node]) -> Any:  # Any: rows of first, last and nodes
    """From the first node of the address that answers, all asked at once; None = none does."""

    async def told(node: Node) -> Any:
        try:
            rows: Any = await _in_time(ask(client.of_node(node), "CLUSTER", "SLOTS"))
        except _NO_ANSWER:
            return None
        return [(first, last, *((host or node[0].encode(), port) for host, port, *_ in nodes)) for first, last, *nodes in rows]

    answers = await asyncio.gather(*(told(node) for node in seeds))
    return next((rows for rows in answers if rows is not None), None)


def _node(place: Any) -> Node:
    host, port = place
    return host.decode() if isinstance(host, bytes) else str(host), int(port)


def _text_of(node: Node) -> str:
    return f"{node[0]}:{node[1]}"


def _within(of_shards: Mapping[int, int], ranges: Sequence[Slots]) -> list[int]:
    return [shard for shard, slot in of_shards.items() if any(first <= slot <= last for first, last in ranges)]


def _gaps(ranges: Sequence[Slots]) -> list[Slots]:
    gaps, at = [], 0
    for first, last in (*ranges, (SLOTS, SLOTS)):
        if first > at:
            gaps.append((at, first - 1))
        at = last + 1
    return gaps
