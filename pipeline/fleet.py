"""Who serves the stages of a shard, and what stands in its streams. Read with plain commands, none of which walks the keys of the server.

A worker process is a consumer of the streams that it reads, and its name lock (`w:<consumer>`) is there while it beats: so the consumers of
the streams lead to all live workers. A process that has taken its name and not read yet is not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import redis

from pipeline.errors import BrokerMisused
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.supervisor.run_account import texts
from pipeline.together import together


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """One stage stream: the common one, one of a capability class, or the lane of a node."""

    short: str
    """Without tag."""
    stage: Stage
    node: str
    """Whose lane it is; empty = nobody's."""
    waiting: int
    """Entries that no worker has."""
    held: int
    """Entries that a worker has."""
    oldest_ms: int
    """When the oldest waiting one was put there; 0 = none waits."""
    consumers: tuple[str, ...]
    """Names, also of processes that are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """One live worker process, as its name lock has it."""

    consumer: str
    stage: Stage
    node: str
    slots: int
    pid: int
    version: str
    since_ms: int
    beat_ms: int
    skew_ms: int
    """Its clock less that of Redis."""
    idle_why: str
    """Why it claims nothing; empty = it does."""


async def read_streams(client: AsyncClient, keys: Keys) -> list[StreamState]:
    """Every stage stream of a shard, by name.

    Raises:
        BrokerError: Redis does not answer, or not to this user.
    """
    names = {text.decode() for text in await ask(client, "SMEMBERS", keys.key("streams"))}
    names |= {keys.short(keys.stage_stream(stage)) for stage in Stage}
    for word in await ask(client, "SMEMBERS", keys.key("classes")):
        names.add(keys.short(keys.stage_stream(Stage.INIT, capability=word.decode())))
    return list(await together(*(_stream(client, keys, name) for name in sorted(names))))


async def read_workers(client: AsyncClient, keys: Keys, streams: Sequence[StreamState]) -> list[WorkerState]:
    """The live workers of a shard, by name.

    Raises:
        BrokerError: as above.
    """
    names = dict(sorted((name, stream.stage) for stream in streams for name in stream.consumers))
    found = await together(*(ask(client, "HGETALL", keys.worker(name)) for name in names))
    return [_worker(name, stage, texts(fields)) for (name, stage), fields in zip(names.items(), found, strict=True) if fields]


async def _stream(client: AsyncClient, keys: Keys, short: str) -> StreamState:
    _, kind, *rest = short.split(":")
    stage, key = Stage(kind), keys.key(short)
    held, oldest_ms, consumers, last = 0, 0, [], "-"
    waiting = int(await ask(client, "XLEN", key))
    try:
        group = next((row for row in await ask(client, "XINFO GROUPS", key) if row["name"].decode() == stage.value), None)
        if group is not None:
            held, last = int(group["pending"]), "(" + group["last-delivered-id"].decode()
            consumers = [row["name"].decode() for row in await ask(client, "XINFO CONSUMERS", key, stage.value)]
    except redis.ResponseError as error:  # the stream is not there yet, or was swept just now
        if "no such key" not in str(error) and "NOGROUP" not in str(error):
            raise BrokerMisused(f"{key}: {error}") from error
    waiting = max(0, waiting - held)
    if waiting:
        found = await ask(client, "XRANGE", key, last, "+", "COUNT", 1)
        oldest_ms = int(found[0][0].split(b"-")[0]) if found else 0
    node = rest[0][1:] if rest and rest[0].startswith("@") else ""
    return StreamState(
        short=short, stage=stage, node=node, waiting=waiting, held=held, oldest_ms=oldest_ms, consumers=tuple(sorted(consumers))
    )


def _worker(consumer: str, stage: Stage, fields: Mapping[str, str]) -> WorkerState:
    # a process that had to take its name again, after Redis lost all, says who it is with its next renewal
    return WorkerState(
        consumer=consumer,
        stage=stage,
        node=fields.get("node") or consumer.partition("-")[2].rpartition("-")[0],
        slots=int(fields.get("slots") or 0),
        pid=int(fields.get("pid") or 0),
        version=fields.get("version", ""),
        since_ms=int(fields.get("since") or 0),
        beat_ms=int(fields.get("beat") or 0),
        skew_ms=int(fields.get("skew_ms") or 0),
        idle_why=fields.get("idle_why", ""),
    )
