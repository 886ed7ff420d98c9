"""Loads the Lua scripts and calls them.

Every script is idempotent (its header says by what), so a call whose reply was lost is simply made again; this is the only place that
does so. A restarted or promoted server does not know our scripts: after NOSCRIPT the call is made with the text.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from functools import lru_cache
from typing import Any, cast

import redis

from pipeline.errors import BrokerError, BrokerUnreachable
from pipeline.failpoints import failpoint
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, SyncClient, broker_error, execute
from pipeline.scripts.sources import source

Arg = str | int | float | bytes
TRIES = 4
FIRST_PAUSE_S = 0.05


class OutOfMemory(BrokerError):
    """Redis is above its memory bound and refused a script that may not go over it."""


@lru_cache(maxsize=64)
def sha(name: str) -> str:
    """The name under which the server keeps a script."""
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


class ScriptRunner:
    """Calls scripts on one shard.

    Args:
        client: for commands; see `redis_client.command_client`.
        keys: names of the shard.
    """

    def __init__(self, client: AsyncClient, keys: Keys) -> None:
        self.client = client
        self.keys = keys

    async def __call__(self, name: str, *args: Arg, tries: int = TRIES, place: str = "") -> list[object]:
        """Runs one script, again after a lost connection. Every call has a failpoint here, before its reply is used.

        Args:
            place: name of that failpoint; default: the script's. Where an end of a stage is kept the stage is part of it, so that a process
                that serves all stages can die at each.

        Raises:
            BrokerUnreachable: no contact after all tries.
            BrokerMisused: a key of another type, no permission.
            OutOfMemory: the server refused a script without `allow-oom`.
        """
        pause = FIRST_PAUSE_S
        while True:
            try:
                reply = await self._once(name, args)
                failpoint(place or name)
                return reply
            except (redis.RedisError, OSError) as error:
                ours = _ours(error)
                tries -= 1
                if not isinstance(ours, BrokerUnreachable) or tries <= 0:
                    raise ours from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause *= 2

    async def _once(self, name: str, args: tuple[Arg, ...]) -> list[object]:
        try:
            return cast(list[object], await execute(self.client, "EVALSHA", sha(name), 1, self.keys.meta, *args))
        except redis.exceptions.NoScriptError:
            return cast(list[object], await execute(self.client, "EVAL", source(name), 1, self.keys.meta, *args))


class ThreadScriptRunner:
    """Calls scripts from a thread, once: its owner decides what a failure means."""

    def __init__(self, client: SyncClient, keys: Keys) -> None:
        self.client = client
        self.keys = keys

    def __call__(self, name: str, *args: Arg) -> list[object]:
        """Runs one script. Its failpoint has its name.

        Raises:
            BrokerError: as `ScriptRunner`.
        """
        try:
            try:
                reply = cast(Any, self.client).execute_command("EVALSHA", sha(name), 1, self.keys.meta, *args)
            except redis.exceptions.NoScriptError:
                reply = cast(Any, self.client).execute_command("EVAL", source(name), 1, self.keys.meta, *args)
        except (redis.RedisError, OSError) as error:
            raise _ours(error) from error
        failpoint(name)
        return cast(list[object], reply)


def _ours(error: redis.RedisError | OSError) -> BrokerError | redis.RedisError | OSError:
    if isinstance(error, redis.exceptions.OutOfMemoryError) or str(error).startswith("OOM"):
        return OutOfMemory(str(error))
    return broker_error(error)
