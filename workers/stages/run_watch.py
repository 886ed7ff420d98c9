"""One watcher a run and process: it wakes the calls that wait for a server or for the end of a pause, and stops the clocks of those in
flight.

Calls that cannot begin do not ask again and again, each for itself: this one asks for all, and they ask when something changed. It watches
while the run has jobs here: often while somebody waits, else once a second, since a pause stops the clocks of calls in flight.

A call at a server that went silent is given up: nobody else would end it. Of a machine that lost its power, or an engine that hangs, no
connection breaks, and the call has as long as the longest of answers may take.

A call in flight while its run is paused stands: neither its own time-out nor the active time of its job goes on, and its promise of a sign
of life is renewed. It may stand as long as its trainer holds the pause. An engine that loads weights may well be silent, so one that keeps
its calls is not given up then; but a pause that waits for the end of calls would wait for ever for those at a server that went silent.
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
SILENT_S = 30.0
"""A server that is down and has answered no look for so long is not waited for. An engine at work, however busy, answers looks."""
TOLD_AFTER_S, TOLD_EVERY_S = 5.0, 60.0
"""A wait is in the log when it lasts that long, and then once a minute."""


class ServerSilent(Exception):
    """The server of a call in flight does not answer any more."""

    def __init__(self, silent_s: float) -> None:
        super().__init__(f"no look answered for {silent_s:.0f} s, nor the call")


class _Clock:
    """The time of one call in flight."""

    def __init__(self, server: str, limit: asyncio.Timeout, waiting: Waiting, alive: Callable[[], None]) -> None:
        self.server = server
        self.gave_up: ServerSilent | None = None
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

    def give_up(self, silent_s: float) -> None:
        """End the call, also one that stands."""
        if self.gave_up is None and not self._limit.expired():
            self.gave_up = ServerSilent(silent_s)
            self._limit.reschedule(asyncio.get_running_loop().time())

    def go(self, *, is_over: bool = False) -> None:
        """Go on, with the time that was left."""
        if self._standing is not None:
            self._standing.close()
            self._standing = None
            if not is_over and self.gave_up is None:
                self._limit.reschedule(asyncio.get_running_loop().time() + self._left_s)


class RunWatch:
    """Watches a run for the jobs of this process.

    Args:
        silent_s: a server that is down is given up after so long without an answered look.
    """

    def __init__(self, pool: InferencePool, run: str, *, silent_s: float = SILENT_S) -> None:
        self._pool = pool
        self._run = run
        self._silent_s = silent_s
        self._some_are_silent = False
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
    async def in_flight(self, server: str, timeout_s: float, waiting: Waiting, alive: Callable[[], None]) -> AsyncIterator[None]:
        """The time of one call: it stands still while the run is paused.

        Args:
            server: that it went to.
            waiting: brackets the time that it stands.
            alive: promises a sign of life, again and again while it stands.

        Raises:
            TimeoutError: the time is over.
            ServerSilent: its server does not answer any more.
        """
        clock: _Clock | None = None
        try:
            async with asyncio.timeout(timeout_s) as limit:
                clock = _Clock(server, limit, waiting, alive)
                self._clocks.add(clock)
                if self.is_paused:
                    clock.stop()
                try:
                    yield
                finally:
                    self._clocks.discard(clock)
                    clock.go(is_over=True)
        except TimeoutError:
            if clock is not None and clock.gave_up is not None:
                raise clock.gave_up from None
            raise

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
                if (not sign.is_paused or sign.ends_calls) and (sign != self._sign or self._some_are_silent):
                    await self._give_up_silent()
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

    async def _give_up_silent(self) -> None:
        """Looks when a server came or went, which a sign tells, and while one of those that are called here is down."""
        try:
            silent = await self._pool.silent_s(self._run, sorted({clock.server for clock in self._clocks}))
        except (BrokerError, redis.RedisError):
            self._some_are_silent = True  # look again
            return
        self._some_are_silent = bool(silent)
        for clock in self._clocks:
            if silent.get(clock.server, 0.0) >= self._silent_s:
                clock.give_up(silent[clock.server])

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
        reasons = [str(reason) for reason in why_waiting(state)]
        why = reasons or ["servers are up, but this process cannot reach them or they have not the model that is asked for"]
        log.warning("calls_wait", run=self._run, calls=self._waiting, why=why)
