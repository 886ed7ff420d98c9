"""One watcher a run and process: it wakes the calls that wait for a server or for the end of a pause, and stops the clocks of those in
flight.

Calls that cannot begin do not ask again and again, each for itself: this one asks for all, and they ask when something changed. It watches
while the run has jobs here: often while somebody waits, else once a second, since a pause stops the clocks of calls in flight.

A call in flight while its run is paused stands: neither its own time-out nor the active time of its job goes on, and its promise of a sign
of life is renewed. It may stand as long as its trainer holds the pause.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager

import redis
import structlog

from pipeline.errors import BrokerError
from pipeline.inference_pool import InferencePool, Sign, why_waiting

log = structlog.get_logger(__name__)

Waiting = Callable[[], AbstractContextManager[None]]
"""Brackets a time that does not count as active."""

OFTEN_S, SELDOM_S = 0.1, 1.0
ALL_AGAIN_S = 2.0
"""Whoever waits asks again after so long, whatever the watcher saw; not while the run is paused."""
TOLD_AFTER_S, TOLD_EVERY_S = 5.0, 60.0
"""A wait is in the log when it lasts that long, and then once a minute."""


class _Clock:
    """The time of one call in flight."""

    def __init__(self, limit: asyncio.Timeout, waiting: Waiting, alive: Callable[[], None]) -> None:
        self._limit = limit
        self._waiting = waiting
        self._standing: ExitStack | None = None
        self._left_s = 0.0
        self.alive = alive

    def stop(self) -> None:
        """Stand until `go`."""
        ends_s = self._limit.when()
        if self._standing is None and ends_s is not None and not self._limit.expired():
            self._left_s = ends_s - asyncio.get_running_loop().time()
            self._limit.reschedule(None)
            self._standing = ExitStack()
            self._standing.enter_context(self._waiting())

    def go(self, *, is_over: bool = False) -> None:
        """Go on, with the time that was left."""
        if self._standing is not None:
            self._standing.close()
            self._standing = None
            if not is_over:
                self._limit.reschedule(asyncio.get_running_loop().time() + self._left_s)


class RunWatch:
    """Watches a run for the jobs of this process."""

    def __init__(self, pool: InferencePool, run: str) -> None:
        self._pool = pool
        self._run = run
        self._jobs = 0
        self._task: asyncio.Task[None] | None = None
        self._sign: Sign | None = None
        self._changed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._waiting = 0
        self._clocks: set[_Clock] = set()

    @property
    def is_paused(self) -> bool:
        """As it was at the last look."""
        return self._sign is not None and self._sign.is_paused

    def join(self) -> None:
        """A job of the run is here; the first one starts the watcher."""
        self._jobs += 1
        if self._task is None:
            self._task = asyncio.create_task(self._watch(), name=f"watch {self._run}")

    def leave(self) -> bool:
        """A job is gone; with the last one the watcher ends. Returns whether it did."""
        self._jobs -= 1
        if self._jobs == 0 and self._task is not None:
            self._task.cancel()
            self._task = None
        return self._jobs == 0

    @property
    def next_change(self) -> asyncio.Event:
        """Set when something changes from now on that a call may wait for. Taken before Redis is asked: no change falls in between."""
        return self._changed

    async def wait(self, change: asyncio.Event, at_most_s: float) -> None:
        """Returns when there was a change, or after a while."""
        self._waiting += 1
        self._hurry.set()
        try:
            async with asyncio.timeout(at_most_s):
                await change.wait()
        except TimeoutError:
            return
        finally:
            self._waiting -= 1

    @asynccontextmanager
    async def in_flight(self, timeout_s: float, waiting: Waiting, alive: Callable[[], None]) -> AsyncIterator[None]:
        """The time of one call: it stands still while the run is paused.

        Args:
            waiting: brackets the time that it stands.
            alive: promises a sign of life, again and again while it stands.

        Raises:
            TimeoutError: the time is over.
        """
        async with asyncio.timeout(timeout_s) as limit:
            clock = _Clock(limit, waiting, alive)
            self._clocks.add(clock)
            if self.is_paused:
                clock.stop()
            try:
                yield
            finally:
                self._clocks.discard(clock)
                clock.go(is_over=True)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        woken_s = loop.time()
        waits_since_s: float | None = None
        told_s = -TOLD_EVERY_S
        while True:
            try:
                sign = await self._pool.sign(self._run)
            except (BrokerError, redis.RedisError):
                sign = None  # each that waits says so itself; Redis back is a change
            if sign is not None:
                if sign.is_paused != self.is_paused:
                    self._turn_clocks(stop=sign.is_paused)
                now_s = loop.time()
                if sign != self._sign or (not sign.is_paused and now_s - woken_s >= ALL_AGAIN_S):
                    woken_s = now_s
                    self._changed.set()
                    self._changed = asyncio.Event()
            if self.is_paused:
                for clock in self._clocks:
                    clock.alive()
            self._sign = sign if sign is not None else self._stale()
            waits_since_s = None if not self._waiting else waits_since_s or loop.time()
            if waits_since_s is not None and loop.time() - waits_since_s >= TOLD_AFTER_S and loop.time() - told_s >= TOLD_EVERY_S:
                told_s = loop.time()
                await self._tell()
            self._hurry.clear()
            await self._pause()

    def _stale(self) -> Sign | None:
        """Without contact the last pause is believed, and whatever comes next is a change."""
        return Sign(-1, self.is_paused) if self._sign is not None else None

    async def _pause(self) -> None:
        if self._waiting:
            await asyncio.sleep(OFTEN_S)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SELDOM_S):
                await self._hurry.wait()

    def _turn_clocks(self, *, stop: bool) -> None:
        for clock in self._clocks:
            if stop:
                clock.stop()
            else:
                clock.go()

    async def _tell(self) -> None:
        try:
            state = await self._pool.state(self._run)
        except (BrokerError, redis.RedisError) as error:
            log.warning("calls_wait", run=self._run, calls=self._waiting, why=[f"Redis does not answer: {error}"])
            return
        why = why_waiting(state) or ["servers are up, but this process cannot reach them or they have not the model that is asked for"]
        log.warning("calls_wait", run=self._run, calls=self._waiting, why=why)
