"""What plain commands of Redis answer about a pipeline. Nothing is judged here.

What this user may not ask is left out, and named in `refused`; that Redis keeps the keys of the pipeline from it is raised.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar
from urllib.parse import urlsplit

import redis
import structlog

from ops.dead.letters import DeadLetter, read_dead_letters
from ops.look import RunLook, look_at_run
from ops.node.reading import NodeView, read_nodes
from ops.status.set_up import SetUpFacts, read_set_up
from pipeline.causes import Reason
from pipeline.clock_skew import clock_skew_ms
from pipeline.errors import BrokerMisused
from pipeline.fleet import StreamState, WorkerState, read_streams, read_workers
from pipeline.inference_pool import InferencePool, PoolState
from pipeline.keys import Keys, run_ids, shard_of
from pipeline.redis_client import AsyncClient, ask, redis_now_ms
from pipeline.samples import Sample, read_samples
from pipeline.settings import QueueSettings
from pipeline.together import together
from pipeline.wait_reasons import Fleet, WaitReasons

log = structlog.get_logger(__name__)

RECENT_MS = 15 * 60_000
"""Dead letters of so long ago still tell of something that is wrong now."""
MOST_DEAD = 200
MOST_RUNS = 100
MOST_DELAYED = 64
BODIES_LOOKED_AT = 8
"""From so many unread results the size of the others is guessed."""
TRIED = ("acl|log", "config|get")
"""What each look tries, though most users may not: no sign that something is set wrongly."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
Part = TypeVar("Part")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisFacts:
    """The server."""

    version: str
    used_bytes: int
    max_bytes: int
    """0 = no bound."""
    reserved_bytes: int
    """For open jobs, over all shards."""
    has_aof: bool
    """It keeps an append-only file."""
    aof_bytes: int
    """Of it; 0 until the first write, too."""
    aof_fails: bool
    """Its last write failed."""
    snapshot_fails: bool
    """The last one failed, and writes are refused for it, as far as this user can tell."""
    evicted_keys: int
    fsync: str
    """Empty = this user may not ask."""
    disk_free_bytes: int | None
    """None = it cannot be seen from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """One run."""

    look: RunLook
    unread: int
    """Records that its trainer has not acknowledged."""
    unread_bytes: int
    """Of their bodies, guessed from a few."""
    pool: PoolState | None
    """None = it was not looked at."""
    reasons: Sequence[Reason]
    """Why it waits; only of runs that have work."""

    @property
    def has_work(self) -> bool:
        """Whether anything of it should get on."""
        alive = self.look.state in ("open", "paused")
        return alive and bool(self.look.waiting or self.look.in_flight or self.look.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A pipeline at one moment."""

    now_ms: int
    """Clock of Redis."""
    skew_ms: int
    """This machine's clock less that of Redis."""
    redis: RedisFacts | None
    set_up: SetUpFacts
    streams: Sequence[StreamState]
    workers: Sequence[WorkerState]
    lanes_read: frozenset[str]
    """Nodes whose lane some RUN worker reads."""
    nodes: Sequence[NodeView]
    heard_ms: Mapping[str, int]
    """Node -> when one of its workers was last heard, also of nodes that are gone."""
    runs: Sequence[RunFacts]
    dead: Sequence[DeadLetter]
    """Recent ones, newest first."""
    dead_total: int
    delayed: int
    lost_jobs: Mapping[str, int]
    """Delayed jobs whose workers died twice or more -> how often."""
    samples: Sequence[Sequence[Sample]]
    """Of each shard, newest first."""
    denials: Sequence[str]
    """What Redis refused its users of late, where this user may see it."""
    refused: Sequence[str]
    """What this user may not ask."""


async def read_facts(client: AsyncClient, settings: QueueSettings) -> Facts:
    """Reads them all.

    Raises:
        BrokerError: Redis does not answer, or keeps the pipeline's keys from this user.
    """
    refused: list[str] = []

    async def may_be_refused(part: Callable[[], Awaitable[Part]], name: str, instead: Part) -> Part:
        try:
            return await part()
        except (BrokerMisused, redis.ResponseError) as error:
            if _is_refusal(error):
                refused.append(name)
            return instead

    asked_s = time.time()
    now_ms = await redis_now_ms(client)
    skew_ms = clock_skew_ms(asked_s, now_ms / 1000, time.time())
    shards = [Keys.of_shard(settings.namespace, shard) for shard in range(settings.shards)]
    streams_of = await together(*(read_streams(client, keys) for keys in shards))
    streams = list(chain(*streams_of))
    workers = await together(*(read_workers(client, keys, streams) for keys in shards))
    fleets = [Fleet(*found) for found in zip(streams_of, workers, strict=True)]
    lanes = sorted({stream.node for stream in streams if stream.node})
    runs = list(chain(*await together(*(_runs(client, settings, keys, fleet) for keys, fleet in zip(shards, fleets, strict=True)))))
    return Facts(
        now_ms=now_ms,
        skew_ms=skew_ms,
        redis=await may_be_refused(lambda: _redis(client, settings, shards), "INFO", None),
        set_up=await read_set_up(client, settings),
        streams=streams,
        workers=tuple({worker.consumer: worker for worker in chain(*workers)}.values()),
        lanes_read=frozenset(await _lanes_read(client, shards, lanes)),
        nodes=await read_nodes(client, settings),
        heard_ms=await _heard(client, shards),
        runs=runs,
        dead=await read_dead_letters(client, settings, most=MOST_DEAD, since_ms=now_ms - RECENT_MS),
        dead_total=sum(await together(*(ask(client, "XLEN", keys.dead) for keys in shards))),
        delayed=sum(await together(*(ask(client, "ZCARD", keys.key("z:delay")) for keys in shards))),
        lost_jobs=dict(chain(*await together(*(_lost_jobs(client, keys) for keys in shards)))),
        samples=await together(*(read_samples(client, keys) for keys in shards)),
        denials=await _denials(client),
        refused=tuple(refused),
    )


def _is_refusal(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, redis.exceptions.NoPermissionError) or "may not" in text or "NOPERM" in text or "no permissions" in text


# ---- Redis


async def _redis(client: AsyncClient, settings: QueueSettings, shards: Sequence[Keys]) -> RedisFacts:
    info = await ask(client, "INFO")
    config = await _config(client)
    reserved = await together(*(ask(client, "HGET", keys.meta, "reserved") for keys in shards))
    stops_writes = "save" not in config or (bool(config["save"]) and config.get("stop-writes-on-bgsave-error") == "yes")
    return RedisFacts(
        version=f"{'valkey' if 'valkey_version' in info else 'redis'} {info.get('valkey_version') or info.get('redis_version', '?')}",
        used_bytes=int(info.get("used_memory", 0)),
        max_bytes=int(info.get("maxmemory", 0)),
        reserved_bytes=sum(max(0, int(value or 0)) for value in reserved),
        has_aof=bool(info.get("aof_enabled")),
        aof_bytes=int(info.get("aof_current_size", 0)) if info.get("aof_enabled") else 0,
        aof_fails=bool(info.get("aof_enabled")) and info.get("aof_last_write_status") == "err",
        snapshot_fails=info.get("rdb_last_bgsave_status") == "err" and stops_writes,
        evicted_keys=int(info.get("evicted_keys", 0)),
        fsync=config.get("appendfsync", ""),
        disk_free_bytes=_disk_free(settings, config.get("dir", "") or _working_folder(info)),
    )


async def _config(client: AsyncClient) -> Mapping[str, str]:
    try:
        found: Any = await ask(client, "CONFIG GET", "appendfsync", "dir", "save", "stop-writes-on-bgsave-error")
    except (BrokerMisused, redis.ResponseError):  # only administrators may; what hangs on it is not said
        return {}
    # Any: by client, redis-py answers a map of text or of bytes
    pairs = found.items() if isinstance(found, Mapping) else zip(found[::2], found[1::2], strict=True)
    return {_text(name): _text(value) for name, value in pairs}


def _text(word: str | bytes) -> str:
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else word


def _disk_free(settings: QueueSettings, folder: str) -> int | None:
    """Of the server's disk, when the server is on this machine."""
    is_here = settings.redis_url.startswith("unix:") or urlsplit(settings.redis_url).hostname in LOOPBACK
    if not is_here or not folder:
        return None
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def _working_folder(info: Mapping[str, Any]) -> str:
    """That of the server's process, which is the folder of its data, for who may not ask its settings; empty = it is not seen here.

    Its number may be another's here (a tunnel, a container), so the program has to be the one that it names.
    """
    process = f"/proc/{info.get('process_id', 0)}"
    try:
        return f"{process}/cwd" if os.path.samefile(f"{process}/exe", _text(info.get("executable", ""))) else ""
    except OSError:  # no such process, another user's, or a system without /proc
        return ""


async def _denials(client: AsyncClient) -> list[str]:
    """What users were refused in the last ten minutes. Only administrators may ask; nobody else misses it."""
    try:
        found: Any = await ask(client, "ACL LOG", 32)  # Any: maps of mixed values
    except (BrokerMisused, redis.ResponseError):
        return []
    said = []
    for row in found:
        fields = {_text(name): value for name, value in row.items()}
        reason = _text(fields.get("reason", ""))
        if _text(fields.get("object", "")) in TRIED:
            continue
        if reason in ("command", "key", "channel") and float(_text(str(fields.get("age-seconds", "0")))) < 600:
            said.append(f"user {_text(fields.get('username', '?'))} was refused the {reason} {_text(fields.get('object', '?'))}")
    return list(dict.fromkeys(said))


# ---- the pipeline


async def _lanes_read(client: AsyncClient, shards: Sequence[Keys], nodes: Sequence[str]) -> list[str]:
    found = []
    for node in nodes:
        beats = await together(*(ask(client, "EXISTS", keys.key("n", node, "run")) for keys in shards))
        if any(beats):
            found.append(node)
    return found


async def _heard(client: AsyncClient, shards: Sequence[Keys]) -> dict[str, int]:
    heard: dict[str, int] = {}
    for keys in shards:
        for name, at in await ask(client, "ZRANGE", keys.key("nodes"), 0, -1, "WITHSCORES", withscores=True):
            heard[name.decode("utf-8", "replace")] = max(int(at), heard.get(name.decode("utf-8", "replace"), 0))
    return heard


async def _lost_jobs(client: AsyncClient, keys: Keys) -> list[tuple[str, int]]:
    jobs = [word.decode() for word in await ask(client, "ZRANGE", keys.key("z:delay"), 0, MOST_DELAYED - 1)]
    lost = await together(*(ask(client, "HGET", keys.job(job), "lost") for job in jobs))
    return [(job, int(count or 0)) for job, count in zip(jobs, lost, strict=True) if int(count or 0) >= 2]


async def _runs(client: AsyncClient, settings: QueueSettings, keys: Keys, fleet: Fleet) -> list[RunFacts]:
    """Those whose trainer was heard last."""
    names = run_ids(await ask(client, "ZREVRANGE", keys.runs, 0, MOST_RUNS - 1))
    own = [name for name in names if keys == Keys.of_shard(settings.namespace, shard_of(name, settings.shards))]
    return [run for run in await together(*(_readable(client, settings, keys, fleet, name) for name in own)) if run is not None]


async def _readable(client: AsyncClient, settings: QueueSettings, keys: Keys, fleet: Fleet, name: str) -> RunFacts | None:
    """One run whose keys hold something else than ours does not keep the others from being told of."""
    try:
        return await _run(client, settings, keys, fleet, name)
    except ValueError as error:
        log.warning("run_unreadable", run=name, error=str(error), what=f"{keys.run(name)} was written by another hand; it is left out")
        return None


async def _run(client: AsyncClient, settings: QueueSettings, keys: Keys, fleet: Fleet, name: str) -> RunFacts | None:
    look = await look_at_run(client, keys, name)
    if look is None:
        return None
    unread = int(await ask(client, "XLEN", keys.results(name)))
    found = RunFacts(
        look=look,
        unread=unread,
        unread_bytes=await _unread_bytes(client, keys, name, unread) if unread else 0,
        pool=await InferencePool(client, settings.namespace, lease_s=1.0).state(name),
        reasons=(),
    )
    if not found.has_work:
        return found
    why = WaitReasons(client, keys, name, namespace=settings.namespace, max_unread=settings.max_unread, fleet=fleet)
    return RunFacts(look=look, unread=unread, unread_bytes=found.unread_bytes, pool=found.pool, reasons=await why.of_run())


async def _unread_bytes(client: AsyncClient, keys: Keys, run: str, unread: int) -> int:
    newest = await ask(client, "XREVRANGE", keys.results(run), "+", "-", "COUNT", BODIES_LOOKED_AT)
    if not newest:
        return 0
    bodies = []
    for _, fields in newest:
        job = fields.get(b"job", b"").decode()
        bodies += [
            keys.body(job, fields[word].decode(), kind) for word, kind in ((b"ra", "run"), (b"ea", "eval")) if word in fields and job
        ]
    sizes = await together(*(ask(client, "STRLEN", key) for key in bodies))
    return sum(map(int, sizes)) * unread // len(newest)
