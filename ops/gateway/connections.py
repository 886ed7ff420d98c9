"""Connections before HTTP is spoken on them: how many there are, and how long one may take to send a request's head.

A protocol stands in front of aiohttp's and passes everything on. aiohttp's own timer closes connections that are idle; it knows no bound
of their number, and none for a head that comes a byte at a time.

Invariants
    - At most `most` connections are open. When one more comes, that one is closed which has had no request for the longest time, if that is
      `quiet_s` or more: connections that only stand there keep nobody out. Where none is so quiet, the new one gets 503 and is closed.
    - A connection on which no request is being answered has `head_s` from its first byte, or from its beginning, to the end of a head.
      Then it gets 408 and is closed.
    - While a request is being answered nothing is counted here: its body, its wait and its answer have bounds of their own, and it gives
      way to nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from ops.gateway.refusals import Refusal

ACCEPT_BACKLOG = 1024
LINGER_S = 1.0
"""A connection that is closed with bytes unread loses its last answer, and clients send at once: it is read for so long."""
MOST_LINGERING = 256
"""Of those; beyond, they are closed at once."""
QUIET_PART = 4
"""Of `head_s`: an honest client sends a head at once, and opens another connection where a kept one was closed."""


class Connections:
    """Makes the protocol of each connection.

    Args:
        inner: makes the protocol that speaks HTTP.
        most: connections at once.
        head_s: for the head of a request.
        clock: seconds, monotonic.
    """

    def __init__(
        self, inner: Callable[[], asyncio.Protocol], *, most: int, head_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.inner = inner
        self.most = most
        self.head_s = head_s
        self.quiet_s = head_s / QUIET_PART
        self.clock = clock
        self.open: dict[asyncio.BaseTransport, _Connection] = {}
        self.lingering: dict[asyncio.Transport, asyncio.TimerHandle] = {}
        self.refused = 0
        """Since the start: beyond the bound."""
        self.slow = 0
        """Since the start: no head in time."""
        self.gave_way = 0
        """Since the start: closed for a new one."""

    def __call__(self) -> asyncio.Protocol:
        return _Connection(self)

    def request_began(self, transport: asyncio.BaseTransport | None) -> None:
        """A head is complete: it is answered from here on."""
        if transport is not None and (connection := self.open.get(transport)) is not None:
            connection.request_began()

    def request_ended(self, transport: asyncio.BaseTransport | None) -> None:
        """The answer is out; the next head may come."""
        if transport is not None and (connection := self.open.get(transport)) is not None:
            connection.request_ended()

    def make_room(self) -> bool:
        """Closes the connection that has been without a request for the longest time; whether there was one quiet enough."""
        quiet = [connection for connection in self.open.values() if not connection.is_answered]
        longest = min(quiet, key=lambda connection: connection.quiet_since_s, default=None)
        if longest is None or self.clock() - longest.quiet_since_s < self.quiet_s:
            return False
        self.gave_way += 1
        longest.give_way()
        return True

    def abort(self) -> None:
        """Ends all of them at once."""
        for transport in [*self.open, *self.lingering]:
            cast(asyncio.Transport, transport).abort()


class _Connection(asyncio.Protocol):
    def __init__(self, all_of_them: Connections) -> None:
        self._all = all_of_them
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_answered = False
        """A request of it is being answered."""
        self.quiet_since_s = all_of_them.clock()
        """Since when none is."""

    # ---- what is counted

    def request_began(self) -> None:
        self.is_answered = True
        self._stop_timer()

    def request_ended(self) -> None:
        self.is_answered = False
        self.quiet_since_s = self._all.clock()

    def give_way(self) -> None:
        """Ends at once: there is nobody to be told anything."""
        if self._transport is not None:
            self._all.open.pop(self._transport, None)  # its place is free now, and not when the loop comes to tell of its end
            self._transport.abort()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._all.head_s, self._out_of_time)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _out_of_time(self) -> None:
        self._timer = None
        if not self.is_answered:
            self._all.slow += 1
            self._refuse(Refusal(408, "slow_head", f"no complete request head within {self._all.head_s:g} s: send it in one piece"))

    def _refuse(self, refusal: Refusal) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            body = refusal.response().body
            assert isinstance(body, bytes)
            reason = {408: "Request Timeout", 503: "Service Unavailable"}[refusal.status]
            lines = (
                f"HTTP/1.1 {refusal.status} {reason}",
                "Content-Type: application/json",
                f"Content-Length: {len(body)}",
                "Connection: close",
            )
            transport.write("\r\n".join((*lines, "", "")).encode() + body)
            self._close(transport)

    def _close(self, transport: asyncio.Transport) -> None:
        if self._inner is not None or len(self._all.lingering) >= MOST_LINGERING:
            transport.close()
        else:
            transport.write_eof()
            self._all.lingering[transport] = asyncio.get_running_loop().call_later(LINGER_S, transport.close)

    # ---- what is passed on

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._all.open) >= self._all.most and not self._all.make_room():
            self._all.refused += 1
            self._refuse(
                Refusal(503, "too_many_connections", f"{self._all.most} connections are open, the bound: close some", retry_after_s=1.0)
            )
            return
        self._all.open[transport] = self
        self._inner = self._all.inner()
        self._inner.connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            if not self.is_answered:
                self._start_timer()
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._transport is not None:
            self._all.open.pop(self._transport, None)
            if (timer := self._all.lingering.pop(self._transport, None)) is not None:
                timer.cancel()
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()


__all__ = ["ACCEPT_BACKLOG", "Connections"]
