"""Calls to Redis that go on over an outage.

Every call of this client is a read or an idempotent script, so one whose reply was lost is made again. A trainer has hours of work behind
it: it waits for Redis rather than fail, up to its patience, and says that it waits.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pipeline.errors import BrokerUnreachable
from pipeline.redis_client import MAX_CONNECTIONS
from trainer_client.logs import Log

T = TypeVar("T")

PATIENCE_S = 300.0
"""A call waits this long for Redis: longer than a restart with a large append-only file, shorter than anyone's night."""
FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 5.0
PARALLEL_CALLS = MAX_CONNECTIONS // 2
"""Calls on their way at once; a client above its bound of connections refuses instead of waiting."""

log = Log(__name__)


class Contact:
    """The state of the connection, shared by everything that a client does.

    Args:
        run: for log lines.
        patience_s: how long a call goes on trying.
    """

    def __init__(self, run: str, *, patience_s: float) -> None:
        self.run = run
        self.patience_s = patience_s
        self.returned = asyncio.Event()
        """Set when contact comes back after an outage; whoever acts on it clears it."""
        self._lost_at_s: float | None = None
        self._last_error = ""
        self._room = asyncio.Semaphore(PARALLEL_CALLS)

    @property
    def outage(self) -> str:
        """Empty, or a sentence on the outage that goes on."""
        if self._lost_at_s is None:
            return ""
        return f"waiting for Redis since {time.monotonic() - self._lost_at_s:.1f} s: {self._last_error}"

    async def reach(self, call: Callable[[], Awaitable[T]], *, stop: asyncio.Event | None = None) -> T:
        """The answer of `call`, made again until it comes.

        Args:
            call: makes the call; made anew each time.
            stop: ends the trying when set.

        Raises:
            BrokerUnreachable: no contact within `patience_s`, or until `stop`.
        """
        started_s, pause_s = time.monotonic(), FIRST_PAUSE_S
        while True:
            try:
                async with self._room:
                    answer = await call()
            except BrokerUnreachable as error:
                self.lost(error)
                if (stop is not None and stop.is_set()) or time.monotonic() - started_s + pause_s > self.patience_s:
                    raise
                pause_s = await self.pause(pause_s, stop)
            else:
                self.found()
                return answer

    async def pause(self, pause_s: float, stop: asyncio.Event | None = None) -> float:
        """Waits before the next try, or until `stop`; returns how long to wait the time after."""
        wait = asyncio.ensure_future((stop or asyncio.Event()).wait())
        try:
            await asyncio.wait([wait], timeout=pause_s * random.uniform(0.5, 1.0))
        finally:
            wait.cancel()
        return min(MAX_PAUSE_S, pause_s * 2)

    def lost(self, error: BrokerUnreachable) -> None:
        """A call failed for want of contact."""
        self._last_error = str(error)
        if self._lost_at_s is None:
            self._lost_at_s = time.monotonic()
            log.warning("waiting_for_redis", run=self.run, error=self._last_error)

    def found(self) -> None:
        """A call was answered."""
        if self._lost_at_s is not None:
            log.info("redis_is_back", run=self.run, outage_s=round(time.monotonic() - self._lost_at_s, 2))
            self._lost_at_s = None
            self.returned.set()
