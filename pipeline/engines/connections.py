"""HTTP/1.1 as a client of one server: requests written in one piece, answers read whole.

A general client costs three times as much CPU a request (107 against 35 microseconds for an empty one), for what no inference server is
asked for: cookies, redirects, uploads, streams, proxies. A turn of an agent is one request, so that is a tenth of what a turn costs.

Invariants:
  1. A connection carries one exchange at a time. It is used again only when the answer was read to a last byte that the server had named,
     nothing came behind it, the request had left, and neither side said that it closes.
  2. An exchange that is cancelled or fails closes its connection: a server sees that nobody waits any more.
  3. What is sent is what the caller means: no value can end its line and begin another header.
  4. An answer whose end is doubtful (two lengths, a length beside chunks, chunks that do not add up, a malformed head) is none. Nothing is
     guessed, so nothing of one answer is ever taken for a part of the next.
  5. An answer is bounded while it comes: its head by `MOST_HEAD_BYTES`, its body by the caller.
  6. Idle connections go after `keepalive_s`, also when nobody asks for one.
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast
from urllib.parse import quote, unquote, urlencode, urlsplit

from pipeline.engines.answers import AnswerReader, Malformed, Received, TooLong

NOT_IN_A_LINE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""What no line of a head has; a tab is allowed."""
IN_A_TARGET = "/:@!$&'()*+,;=~-._%?"
_WANTED = "expected http://host:port, https://host:port or unix:/path"
DEFAULT_PORTS = {"http": 80, "https": 443}


class Unreachable(Exception):
    """No connection could be made."""


class Closed(Exception):
    """The connection closed before the head of an answer was there."""


class BrokenOff(Exception):
    """An answer began, and is none."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, and how its requests begin."""

    host: str
    port: int
    is_tls: bool
    socket: str
    """Path of a Unix socket; empty = none."""
    host_header: str
    prefix: str
    """Path before all paths."""
    authorization: str
    """From the address itself (`user:password@`); empty = none."""

    @classmethod
    def of(cls, url: str) -> Address:
        """The address in `http(s)://host:port/prefix` or `unix:/path/to.sock`.

        Raises:
            ValueError: neither.
        """
        if url.startswith("unix:"):
            return cls("", 0, False, "/" + url.removeprefix("unix:").lstrip("/"), "localhost", "", "")
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
            host = host if host.isascii() else host.encode("idna").decode("ascii")
            port = DEFAULT_PORTS.get(parts.scheme, 0) if parts.port is None else parts.port
        except ValueError as error:
            raise ValueError(f"{_WANTED}, got {url!r}: {error}") from error
        if parts.scheme not in DEFAULT_PORTS or not host or NOT_IN_A_LINE.search(host) or parts.query or parts.fragment:
            raise ValueError(f"{_WANTED}, got {url!r}")
        shown = f"[{host}]" if ":" in host else host
        user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()
        return cls(
            host,
            port,
            parts.scheme == "https",
            "",
            shown if port == DEFAULT_PORTS[parts.scheme] else f"{shown}:{port}",
            quote(parts.path.rstrip("/"), safe=IN_A_TARGET),
            f"Basic {base64.b64encode(user).decode('ascii')}" if parts.username or parts.password else "",
        )


class Connections:
    """Connections to one server, on the loop that uses them.

    Args:
        url: see `Address.of`; raises as that does.
        headers: sent with every request.
        keepalive_s: how long one is kept that nobody uses.
        connect_timeout_s: to make one, name look-up and TLS included.
        only_one: one is made and no second; exchanges wait for each other, and when it is closed nothing more is sent.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], *, keepalive_s: float, connect_timeout_s: float, only_one: bool = False
    ) -> None:
        self._address = address = Address.of(url)
        own = {"host": address.host_header, "accept": "*/*", "user-agent": "rollstream"}
        if address.authorization:
            own["authorization"] = address.authorization
        self._head = _lines(own | dict(headers))
        self._keepalive_s, self._connect_timeout_s = keepalive_s, connect_timeout_s
        self._loop = asyncio.get_running_loop()
        self._tls = _tls() if address.is_tls else None
        self._idle: list[_Connection] = []
        """The longest unused first."""
        self._open: set[_Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._one = asyncio.Lock() if only_one else None
        self.made = 0
        """Connections made so far."""

    async def exchange(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes | None, most_bytes: int
    ) -> Received:
        """One request and its answer, of any status.

        Args:
            body: None = none.
            most_bytes: an answer above is none.

        Raises:
            Unreachable, Closed, BrokenOff, TooLong
            ValueError: a header cannot be sent.
        """
        target = quote(self._address.prefix + path, safe=IN_A_TARGET) + (f"?{urlencode(query)}" if query else "")
        length = "" if body is None else f"content-length: {len(body)}\r\n"
        head = f"{method} {target} HTTP/1.1\r\n{self._head}{_lines(headers)}{length}\r\n".encode()
        request = head if body is None else head + body
        if self._one is None:
            return await self._exchange(request, most_bytes)
        async with self._one:
            return await self._exchange(request, most_bytes)

    async def _exchange(self, request: bytes, most_bytes: int) -> Received:
        connection = self._take() or await self._make()
        try:
            received = await connection.exchange(request, most_bytes)
        except BaseException:
            connection.drop()
            raise
        if connection.can_go_on and not self._is_closed:
            self._keep(connection)
        else:
            connection.drop()
        return received

    async def close(self) -> None:
        """Close all connections; exchanges on them fail as closed."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._idle.clear()
        gone = [connection.gone for connection in self._open]
        for connection in list(self._open):
            connection.drop()
        if gone:
            await asyncio.wait(gone)

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.can_go_on and self._loop.time() - connection.idle_since_s < self._keepalive_s:
                return connection
            connection.drop()
        return None

    def _keep(self, connection: _Connection) -> None:
        connection.idle_since_s = self._loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._keepalive_s, self._sweep_idle)

    def _sweep_idle(self) -> None:
        self._sweep = None
        old_s = self._loop.time() - self._keepalive_s
        while self._idle and self._idle[0].idle_since_s <= old_s:
            self._idle.pop(0).drop()
        if self._idle:
            self._sweep = self._loop.call_at(self._idle[0].idle_since_s + self._keepalive_s, self._sweep_idle)

    async def _make(self) -> _Connection:
        if self._is_closed:
            raise Closed("the connections were closed")
        if self._one is not None and self.made:
            raise Closed("the connection over which it answered until now is closed: it restarted, or keeps none open")
        address = self._address
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                if address.socket:
                    _, connection = await self._loop.create_unix_connection(self._new, address.socket)
                else:
                    _, connection = await self._loop.create_connection(self._new, address.host, address.port, ssl=self._tls)
        except TimeoutError as error:
            raise Unreachable(f"no connection within {self._connect_timeout_s:g} s") from error
        except (OSError, UnicodeError) as error:  # UnicodeError: of a host that is no name
            raise Unreachable(str(error) or type(error).__name__) from error
        self.made += 1
        return connection

    def _new(self) -> _Connection:
        return _Connection(self._loop, self._open)


class _Connection(asyncio.Protocol):
    """One connection.

    Args:
        opened: holds it from its beginning to its end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, opened: set[_Connection]) -> None:
        self._loop = loop
        self._opened = opened
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self._answer: asyncio.Future[Received] | None = None
        self._keeps = True
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done when it is closed."""
        self.idle_since_s = 0.0

    @property
    def can_go_on(self) -> bool:
        """Whether another exchange may follow."""
        transport = self._transport
        return self._keeps and transport is not None and not transport.is_closing() and not transport.get_write_buffer_size()

    async def exchange(self, request: bytes, most_bytes: int) -> Received:
        """Send, and wait for the answer. Whatever is raised, `drop` it then."""
        if self._transport is None or self._transport.is_closing():
            raise Closed("the connection closed when it had just been made")
        self._reader, self._answer = AnswerReader(most_bytes), self._loop.create_future()
        self._transport.write(request)
        try:
            return await self._answer
        finally:
            self._reader = self._answer = None

    def drop(self) -> None:
        """Close at once, whatever was not sent yet."""
        self._keeps = False
        if self._transport is not None:
            self._transport.abort()

    # ---- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by their class, and all by what they do
        self._opened.add(self)

    def data_received(self, data: bytes) -> None:
        reader, answer = self._reader, self._answer
        if reader is None or answer is None or answer.done():  # nobody asked
            self.drop()
            return
        try:
            received = reader.feed(data)
        except TooLong as error:
            answer.set_exception(error)
        except Malformed as error:
            answer.set_exception(BrokenOff(str(error)))
        else:
            if received is not None:
                self._keeps = self._keeps and received.keeps
                answer.set_result(received)

    def connection_lost(self, error: Exception | None) -> None:
        self._keeps = False
        self._opened.discard(self)
        self._transport = None
        if not self.gone.done():
            self.gone.set_result(None)
        reader, answer = self._reader, self._answer
        if reader is None or answer is None or answer.done():
            return
        received = None if error is not None else reader.end()
        if received is not None:
            answer.set_result(received)
        elif reader.has_head:
            answer.set_exception(BrokenOff(f"connection closed before its end: {error or 'by the server'}"))
        else:
            answer.set_exception(Closed(str(error or "by the server")))


def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _lines(headers: Mapping[str, str]) -> str:
    """Lines of a head."""
    for name, value in headers.items():
        if NOT_IN_A_LINE.search(value) or NOT_IN_A_LINE.search(name):
            raise ValueError(f"header {name!r} has a character that ends a line or none can read")
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
