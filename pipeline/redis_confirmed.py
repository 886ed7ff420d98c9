"""Connections whose scripts are answered only when replicas have what they wrote (docs/adr/0029-redis-beyond-one-box.md, decision 2).

Invariant: the reply to a script is given when as many replicas as asked have everything that it rests on, also what an earlier call wrote
over a connection that is gone. Else the call ends as an outage, and may be made again.
"""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio

from pipeline.redis_links import Link

WAIT_S = 1.0
"""For replicas, a call. Above the way to a replica that stalls for a moment, and with all tries of a call still far below a lease."""
_SCRIPT_CALLS = frozenset(("EVALSHA", "EVAL"))
_MARK = "#!lua flags=allow-oom\nredis.call('HSET', KEYS[1], 'mark', 1)\nredis.call('HDEL', KEYS[1], 'mark')"
"""A write that leaves nothing. WAIT speaks of the last write of its own connection, and a call that was made before has none to make."""


class ConfirmedLink(Link):
    """A connection that waits for replicas after each script.

    Args:
        replicas: so many must have what was written.
    """

    def __init__(self, session: redis.asyncio.Connection, timeout_s: float, *, replicas: int) -> None:
        super().__init__(session, timeout_s)
        self._replicas = replicas

    async def ask(self, words: tuple[Any, ...]) -> Any:
        """The reply to one command.

        Raises:
            redis.ResponseError: `NOREPLICAS`: the script was run, and too few replicas have what it did. Else as `Link.ask`.
        """
        reply = await super().ask(words)
        if words[0] in _SCRIPT_CALLS:
            await super().ask(("EVAL", _MARK, 1, words[3]))
            reached = int(await super().ask(("WAIT", self._replicas, int(WAIT_S * 1000))))
            if reached < self._replicas:
                raise redis.ResponseError(
                    f"NOREPLICAS {reached} of {self._replicas} replicas (queue.wait_replicas) have what this call wrote, after {WAIT_S:g} s"
                )
        return reply
