"""Connections that carry one command at a time, at a small part of what redis-py spends on one.

redis-py makes each connection (address, TLS, password, handshake); from then on its transport is ours: a command is packed and its reply
parsed in C, and between the two stands one future. A worker's calls are short and many, and redis-py's way through a pool, a retry, two
timeouts, a stream reader and its counters was a third of what a job costs a worker.

Invariants:
  1. A connection has at most one command under way, so a reply belongs to the command before it. Whatever breaks that order (a caller that
     was cancelled, a timeout, bytes that are no reply) ends the connection.
  2. A connection is in use or idle; one that is lost is neither. What was cancelled while it waited or asked leaves its room to others.
  3. When a server did not answer in time, or is no master any more, the idle connections end with the one that found out: each would cost
     another caller as much, and a new one may lead to another server (docs/adr/0029-redis-beyond-one-box.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self, cast

import hiredis
import redis
import redis.asyncio
from redis.asyncio.connection import DefaultParser

_INCOMPLETE = object()
_OWN_WAYS = ("EMPTY_RESPONSE", "NEVER_DECODE")
"""Options by which redis-py treats a reply in a way of its own."""
_NOT_HERE = (redis.exceptions.ReadOnlyError, redis.exceptions.MasterDownError)
"""What a server says that is no master any more: the next connection may lead to one."""


class Link(asyncio.Protocol):
    """One connection.

    Args:
        session: redis-py's, connected.
        timeout_s: a reply that takes longer means that the connection is dead.
    """

    def __init__(self, session: redis.asyncio.Connection, timeout_s: float) -> None:
        self.is_lost = False
        self.is_elsewhere = False
        """Whether it was lost in a way that speaks against the server, not against this connection."""
        self._session = session
        # Any, and a name of its own: redis-py shows nobody the transport of a connection that it made
        self._transport: asyncio.Transport = cast(Any, session)._writer.transport
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._reply: asyncio.Future[object] | None = None
        self._reader = hiredis.Reader(
            protocolError=redis.exceptions.InvalidResponse, replyError=DefaultParser.parse_error, notEnoughData=_INCOMPLETE
        )
        self._transport.set_protocol(self)

    async def ask(self, words: tuple[Any, ...]) -> Any:
        """The reply to one command.

        Raises:
            redis.ConnectionError, redis.TimeoutError: the connection is lost; whether the command was done is not known.
            redis.ResponseError: the server refuses.
            redis.DataError: a word is of a type that cannot be sent; nothing was.
        """
        try:
            packed = hiredis.pack_command(words)
        except TypeError as error:
            raise redis.DataError(f"{words[0]}: {error}") from error
        if self._transport.is_closing():
            self._lose(redis.ConnectionError("the server closed the connection"))
            raise redis.ConnectionError("the server closed the connection")
        reply = self._reply = self._loop.create_future()
        timer = self._loop.call_later(self._timeout_s, self._run_out)
        try:
            self._transport.write(packed)
            return await reply
        finally:
            timer.cancel()
            self._reply = None
            if reply.cancelled():
                self._lose(redis.ConnectionError("cancelled"))

    async def close(self) -> None:
        """Ends the connection; whoever waits for a reply hears of it."""
        self._lose(redis.ConnectionError("the client closed the connection"))
        await self._session.disconnect(nowait=True)

    # ---- what the event loop tells

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            reply = self._reader.gets()
        except redis.exceptions.InvalidResponse as error:
            self._lose(error)
            return
        if reply is _INCOMPLETE:
            return
        waits = self._reply
        if waits is None or waits.done() or self._reader.has_data():
            self._lose(redis.exceptions.InvalidResponse("more replies than commands"))
        elif isinstance(reply, Exception):
            waits.set_exception(reply)
            if isinstance(reply, _NOT_HERE):
                self.is_elsewhere = True
                self._lose(reply)
        else:
            waits.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(redis.ConnectionError(f"the server closed the connection: {exc or 'end of stream'}"))

    def _run_out(self) -> None:
        self.is_elsewhere = True
        self._lose(redis.TimeoutError(f"no reply within {self._timeout_s:g} s"))

    def _lose(self, error: redis.RedisError) -> None:
        self.is_lost = True
        self._transport.abort()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error)


class LinkPool(redis.asyncio.BlockingConnectionPool):
    """Gives commands their connections; redis-py's own are there for its pipelines. Made by `from_url`.

    Args:
        max_connections: so many of each kind; who comes after them waits for one.
        timeout: for so long, in seconds.
        socket_timeout: seconds to wait for a reply.
        make_link: makes a connection of ours from one of redis-py's and `socket_timeout`.
    """

    def __init__(self, *, make_link: Callable[[redis.asyncio.Connection, float], Link] = Link, **options: Any) -> None:
        # Any: redis-py takes its options by name, each of another type
        super().__init__(**options)
        self._make_link = make_link
        self._timeout_s = float(options["socket_timeout"])
        self._links: set[Link] = set()
        self._idle: list[Link] = []
        self._room = asyncio.Semaphore(self.max_connections)

    async def ask(self, words: tuple[Any, ...]) -> Any:
        """The reply to one command, from a connection that is free.

        Raises:
            As `Link.ask`.
        """
        if self._room.locked():
            await self._wait_for_room()
        else:
            await self._room.acquire()  # at once
        try:
            link = await self._free_link()
            try:
                return await link.ask(words)
            finally:
                if link.is_lost:
                    await self._close(link)
                    if link.is_elsewhere:
                        await self._close_idle()
                else:
                    self._idle.append(link)
        finally:
            self._room.release()

    async def disconnect(self, inuse_connections: bool = True) -> None:
        """Ends every connection, or those that nobody uses."""
        for link in list(self._links) if inuse_connections else self._idle:
            await self._close(link)
        self._idle.clear()
        await super().disconnect(inuse_connections)

    async def _wait_for_room(self) -> None:
        try:
            async with asyncio.timeout(self.timeout):
                await self._room.acquire()
        except TimeoutError as error:
            raise redis.ConnectionError(f"all {self.max_connections} connections were in use for {self.timeout:g} s") from error

    async def _free_link(self) -> Link:
        """The one used last, or a new one. Those that broke while idle are dropped when their turn comes."""
        while self._idle:
            link = self._idle.pop()
            if not link.is_lost:
                return link
            await self._close(link)
        session = cast(Any, self).make_connection()
        try:
            await session.connect()
        except BaseException:
            await session.disconnect(nowait=True)
            raise
        link = self._make_link(session, self._timeout_s)
        self._links.add(link)
        return link

    async def _close_idle(self) -> None:
        while self._idle:
            await self._close(self._idle.pop())

    async def _close(self, link: Link) -> None:
        self._links.discard(link)
        await link.close()


class LinkedRedis(redis.asyncio.Redis):
    """A client of redis-py whose commands go through a `LinkPool`."""

    _pool: LinkPool

    @classmethod
    def from_link_pool(cls, pool: LinkPool) -> Self:
        """The client that owns this pool, and closes it."""
        client = cast(Self, cls.from_pool(pool))
        client._pool = pool
        return client

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """One command, and its reply as redis-py parses it."""
        name = args[0]
        if " " in name or any(option in options for option in _OWN_WAYS):
            return await cast(Any, super()).execute_command(*args, **options)
        reply = await self._pool.ask(args)
        parse = self.response_callbacks.get(name)
        if parse is None:
            return reply
        options.pop("keys", None)
        return parse(reply, **options)
