"""How long a client lives, and how everything that waits learns of its end.

Invariants:
  1. The first thing that ends a client is what every later call says: a trainer that was fenced off hears so everywhere, never a hang.
  2. A run that takes no more work (cancelled, closed) still gives out the results it has: only what needs an open run is refused. One that
     Redis does not have gives out nothing any more, and nobody waits for it.
  3. Waiting costs nothing: futures are resolved where things arrive, and no loop asks again and again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar, cast

from pipeline.causes import Reason
from pipeline.errors import BrokerMisused, BrokerUnreachable, RunClosed, RunLost, StaleIncarnation
from trainer_client.errors import ClientClosed, ClientForked, WaitTimeout
from trainer_client.logs import Log

T = TypeVar("T")

log = Log(__name__)

UNKNOWN = "unknown"
"""State of a run that Redis does not have."""


class Lifetime:
    """Open until it is closed or something ends it.

    Args:
        run: for messages.
    """

    def __init__(self, run: str) -> None:
        self.run = run
        self.stop = asyncio.Event()
        """Set once, at the end; background loops leave when they see it."""
        self._pid = os.getpid()
        self._ended: Exception | None = None
        self._refused: Exception | None = None
        self._waiting: dict[asyncio.Future[object], bool] = {}

    def check(self, *, needs_open_run: bool = False) -> None:
        """Raises what ended the client, if anything did, or that this is not the process that made it."""
        if os.getpid() != self._pid:
            raise ClientForked(self.run, self._pid)
        if self._ended is not None:
            raise self._ended
        if needs_open_run and self._refused is not None:
            raise self._refused

    def end(self, error: Exception) -> None:
        """Ends the client with an error; the first one stays."""
        if self._ended is None:
            if not isinstance(error, ClientClosed):
                log.error("client_ended", run=self.run, error=repr(error))
            self._ended = error
            self.stop.set()
            for future in list(self._waiting):
                _reject(future, error)

    def close(self) -> None:
        """Ends the client in order."""
        self.end(ClientClosed(self.run))

    def refuse(self, error: Exception) -> None:
        """No more work can be had from the run: it was closed or cancelled, or its feed failed."""
        if self._refused is None:
            self._refused = error
            for future, needs_open_run in list(self._waiting.items()):
                if needs_open_run:
                    _reject(future, error)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Around each call to Redis: refuses when the client has ended, and learns of its end from what the call says."""
        self.check()
        try:
            yield
        except (StaleIncarnation, BrokerMisused) as error:
            if isinstance(error, StaleIncarnation) and int(error.current) < error.mine:
                lost = RunLost(self.run, f"incarnation {error.mine}, this trainer, but {error.current}")
                self.end(lost)
                raise lost from error
            self.end(error)
            raise
        except RunClosed as error:
            if error.state == UNKNOWN and not isinstance(error, RunLost):
                lost = RunLost(self.run, "this run")
                self.end(lost)
                raise lost from error
            self.refuse(error)
            raise
        except BrokerUnreachable:
            self.check()  # the end of the client cut its patience short
            raise

    async def wait(
        self,
        future: asyncio.Future[T],
        what: str,
        timeout_s: float | None,
        why: Callable[[], Awaitable[Sequence[Reason]]],
        *,
        needs_open_run: bool = False,
    ) -> T:
        """Waits for a future of the inbox.

        Args:
            what: for the error.
            why: asked what stands in the way when the time is over.
            needs_open_run: whether it cannot come when the run takes no more work.

        Raises:
            WaitTimeout: with what stands in the way.
            ClientClosed, StaleIncarnation, RunClosed, BrokerMisused: the client ended meanwhile.
        """
        self.check(needs_open_run=needs_open_run and not future.done())
        key = cast("asyncio.Future[object]", future)
        self._waiting[key] = needs_open_run
        started_s = time.monotonic()
        try:
            # without asyncio.timeout, which could not tell its own end from that of the error that was put into the future
            await asyncio.wait([future], timeout=timeout_s)
        finally:
            self._waiting.pop(key, None)
            if not future.done():
                future.cancel()
        if future.cancelled():
            raise WaitTimeout(what, time.monotonic() - started_s, await why())
        return future.result()

    async def pause(self, seconds: float | None, event: asyncio.Event | None = None) -> None:
        """Returns after some seconds, when `event` is set, or at the end of the client, whichever comes first."""
        waits = [asyncio.ensure_future(each.wait()) for each in (self.stop, event) if each is not None]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


def _reject(future: asyncio.Future[object], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
