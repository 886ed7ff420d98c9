"""Redis as this process is set to use it: what it is, how it is set, and what its user may do."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import redis

from ops.doctor.finding import Finding, fail, note, ok, warn
from ops.redis.users import roles
from ops.status.set_up import read_set_up
from ops.status.set_up_troubles import of_set_up
from pipeline.clock_skew import LARGE_MS, clock_skew_ms
from pipeline.counts import counted
from pipeline.errors import BrokerMisused, BrokerUnreachable
from pipeline.keys import Keys
from pipeline.redis_address import SetUp
from pipeline.redis_client import AsyncClient, ask, redis_now_ms
from pipeline.settings import QueueSettings

QUEUE_USERS = ("trainer", "worker", "supervisor", "ops")
"""Of those that `ops/redis/users.py` makes, who use the queue of rollouts. A user of any other name is taken for a worker."""
DO_ABOUT = {
    "master_down": "wait for the failover, or start it again; without a replica in reach nobody takes its place",
    "slots_unserved": "redis-cli --cluster check, then --cluster fix",
    "replica_lost": "start the replica again; INFO replication of the master says how far it is",
    "sentinel_lost": "start it again, or take it out of ROLLSTREAM_REDIS_URL; one that wants a password is given that of the servers",
}
LEAST_REDIS, LEAST_VALKEY = (7, 0), (7, 2)


@dataclass(frozen=True, slots=True)
class Right:
    """A command that a role needs, tried on a key that is not there, so that it changes nothing."""

    command: str
    words: tuple[str, ...]
    """With `{key}` where a key stands."""
    is_read: bool = False
    """The read-only user has it, too."""
    for_trainers: bool = True


RIGHTS = (
    Right("GET", ("GET", "{key}"), is_read=True),
    Right("HGETALL", ("HGETALL", "{key}"), is_read=True),
    Right("XRANGE", ("XRANGE", "{key}", "-", "+", "COUNT", "1"), is_read=True),
    Right("XPENDING", ("XPENDING", "{key}", "g"), is_read=True),
    Right("XINFO", ("XINFO GROUPS", "{key}"), is_read=True),
    Right("ZRANGE", ("ZRANGE", "{key}", "0", "0"), is_read=True),
    Right("TIME", ("TIME",), is_read=True),
    Right("INFO", ("INFO", "server"), is_read=True),
    Right("EVALSHA", ("EVALSHA", "0" * 40, "1", "{key}")),
    Right("HDEL", ("HDEL", "{key}", "f")),
    Right("ZREM", ("ZREM", "{key}", "m")),
    Right("SREM", ("SREM", "{key}", "m")),
    Right("UNLINK", ("UNLINK", "{key}")),
    Right("PEXPIRE", ("PEXPIRE", "{key}", "1")),
    Right("XACK", ("XACK", "{key}", "g", "1-1")),
    Right("XDEL", ("XDEL", "{key}", "1-1")),
    Right("XREADGROUP", ("XREADGROUP", "GROUP", "g", "doctor", "COUNT", "1", "STREAMS", "{key}", ">"), for_trainers=False),
    Right("XCLAIM", ("XCLAIM", "{key}", "g", "doctor", "1", "1-1", "JUSTID"), for_trainers=False),
)


async def version_and_settings(client: AsyncClient) -> AsyncIterator[Finding]:
    """Version, eviction, the append-only file, memory."""
    try:
        info: Any = await ask(client, "INFO")  # Any: a map of mixed values
    except (BrokerMisused, redis.ResponseError) as error:
        yield fail("redis.info", f"INFO: {error}", "give this user +info: `ops` of `rollstream redis serve` has it")
        return
    name = "valkey" if "valkey_version" in info else "redis"
    version = str(info.get("valkey_version") or info.get("redis_version", "0"))
    least = LEAST_VALKEY if name == "valkey" else LEAST_REDIS
    if tuple(int(word) for word in version.split(".")[:2] if word.isdigit()) < least:
        yield fail("redis.version", f"{name} {version}", f"use {name} {least[0]}.{least[1]} or later: scripts need it")
    else:
        yield ok("redis.version", f"{name} {version}, {info.get('redis_mode', 'standalone')}")
    policy = info.get("maxmemory_policy", "?")
    if policy != "noeviction":
        yield fail("redis.noeviction", f"maxmemory-policy {policy}: keys of open jobs may vanish", "CONFIG SET maxmemory-policy noeviction")
    else:
        yield ok("redis.noeviction", "nothing is ever evicted")
    if int(info.get("evicted_keys", 0)):
        yield fail("redis.evicted", f"{info['evicted_keys']} keys were evicted", "jobs may be lost: rollstream status, then resubmit")
    yield _memory(int(info.get("used_memory", 0)), int(info.get("maxmemory", 0)))
    if not info.get("aof_enabled"):
        yield warn("redis.aof", "no append-only file: what is accepted is gone with the process", "CONFIG SET appendonly yes")
    elif info.get("aof_last_write_status") == "err":
        yield fail("redis.aof", "the last write to the append-only file failed", "make room on its disk, or mend it")
    else:
        yield ok("redis.aof", f"append-only file, {int(info.get('aof_current_size', 0)) / 2**20:.0f} MiB, fsync {await _fsync(client)}")


def _memory(used: int, most: int) -> Finding:
    if not most:
        return warn("redis.memory", "no maxmemory: the kernel ends a Redis that grows too large", "CONFIG SET maxmemory to 60 % of the RAM")
    what = f"{used / 2**20:,.0f} of {most / 2**20:,.0f} MiB"
    if used > 0.8 * most:
        return warn("redis.memory", f"{what}: no new work is taken above 80 %", "ack results (rollstream run list), or give it more")
    return ok("redis.memory", what)


async def _fsync(client: AsyncClient) -> str:
    try:
        found: Any = await ask(client, "CONFIG GET", "appendfsync")
    except (BrokerMisused, redis.ResponseError):
        return "not visible to this user"
    (value,) = found.values()
    word = value.decode() if isinstance(value, bytes) else str(value)
    return f"{word} (what a second holds may be lost; clients submit it again)" if word == "everysec" else word


async def clock(client: AsyncClient) -> AsyncIterator[Finding]:
    """This machine's clock against that of Redis."""
    asked_s = time.time()
    redis_ms = await redis_now_ms(client)
    skew_ms = clock_skew_ms(asked_s, redis_ms / 1000, time.time())
    if abs(skew_ms) > LARGE_MS:
        where = "ahead of" if skew_ms > 0 else "behind"
        yield warn("clock", f"this machine is {abs(skew_ms) / 1000:.1f} s {where} Redis", "let both keep time by NTP (chrony, timesyncd)")
    else:
        yield ok("clock", "within a second of that of Redis")


async def layout(client: AsyncClient, settings: QueueSettings) -> AsyncIterator[Finding]:
    """Whether the keys were made by the same settings."""
    keys = Keys.of_shard(settings.namespace, 0)
    found = {name.decode(): value.decode() for name, value in (await ask(client, "HGETALL", keys.meta)).items()}
    shards = found.get("shards")
    if not found:
        yield note("redis.layout", f"nothing is in the namespace {settings.namespace} yet")
    elif shards is not None and shards != str(settings.shards):
        yield fail("redis.layout", f"made with {shards} shards, queue.shards is {settings.shards}", f"set ROLLSTREAM_SHARDS={shards}")
    else:
        yield ok("redis.layout", f"namespace {settings.namespace}, {counted(settings.shards, 'shard')}")


async def set_up(client: AsyncClient, settings: QueueSettings) -> AsyncIterator[Finding]:
    """How the servers stand together: masters, replicas, Sentinels, slots."""
    facts = await read_set_up(client, settings)
    troubles = list(of_set_up(facts))
    for trouble in troubles:
        say = fail if trouble.is_blocking else warn
        yield say(f"redis.{trouble.cause}", trouble.what, DO_ABOUT[trouble.cause])
    if facts.set_up is SetUp.SINGLE:
        return
    if not troubles:
        masters = ", ".join(f"{master.address} with {'?' if master.replicas is None else master.replicas}" for master in facts.masters)
        by = f", {len(facts.sentinels)} Sentinels agree" if facts.sentinels else ""
        yield ok("redis.set_up", f"{facts.set_up}: master and replicas in sync: {masters}{by}")
    if not facts.wait_replicas:
        yield note(
            "redis.wait_replicas",
            "queue.wait_replicas is 0: a failover forgets the last moments, whose work is done again",
            "with two replicas a master, set ROLLSTREAM_WAIT_REPLICAS=1 (docs/how-to/separate-redis.md)",
        )
    elif any(master.replicas == facts.wait_replicas for master in facts.masters):
        yield warn(
            "redis.wait_replicas",
            f"a master has no more replicas than wait_replicas = {facts.wait_replicas}: when one is lost the queue stands",
            "add a replica",
        )


async def rights(client: AsyncClient, settings: QueueSettings) -> AsyncIterator[Finding]:
    """What the user in use may do, tried on a key that is not there."""
    known = {role.name for role in roles(settings.namespace)}
    if settings.redis_user in known.difference(QUEUE_USERS):
        yield fail(
            "redis.rights",
            f"user {settings.redis_user} is none of the queue of rollouts",
            f"connect as one of {', '.join(QUEUE_USERS)} (ROLLSTREAM_REDIS_USER and its password file)",
        )
        return
    role = settings.redis_user if settings.redis_user in QUEUE_USERS else "worker"
    needed = [right for right in RIGHTS if (role != "ops" or right.is_read) and (role != "trainer" or right.for_trainers)]
    key = Keys.of_shard(settings.namespace, 0).key("b", "doctor", "none")
    missing = []
    for right in needed:
        if await _is_refused(client, tuple(word.replace("{key}", key) for word in right.words)):
            missing.append(right.command)
    who = f"user {settings.redis_user or 'default'}, as {role}"
    if missing:
        yield fail(
            "redis.rights",
            f"{who}: may not {', '.join(missing)} on keys of the namespace {settings.namespace}",
            "give it the rules of that user (docs/how-to/separate-redis.md), or connect as another",
        )
    else:
        yield ok("redis.rights", f"{who}: all {len(needed)} commands that were tried are allowed")


async def _is_refused(client: AsyncClient, words: tuple[str, ...]) -> bool:
    try:
        await ask(client, *words)
    except BrokerUnreachable:
        raise
    except BrokerMisused as error:
        return "may not" in str(error) or "NOPERM" in str(error) or "permission" in str(error)
    except redis.ResponseError:  # no such key, group or script: it was allowed to ask
        return False
    return False
