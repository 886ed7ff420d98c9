"""Connections to the master that Sentinels name (docs/adr/0029-redis-beyond-one-box.md, decision 4).

Invariant: a connection is one to a server that said `master` when it was made, at an address that a Sentinel gave just then. No address is
kept: a restarted old master says `master` too, until a Sentinel has told it otherwise.

Any stands where redis-py leaves a connection's methods untyped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import redis
import redis.asyncio

from pipeline.redis_address import Node

SENTINEL_TIMEOUT_S = 1.0
"""For a Sentinel, to connect and to answer: there are others."""
_QUESTION = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME")
_REFUSED = (redis.AuthenticationError, redis.exceptions.NoPermissionError)
"""By the master: asking another Sentinel does not help."""


class Sentinels:
    """Who to ask, the one that led to a master last first. Shared by the connections of a client.

    Args:
        nodes: Sentinels.
        master: the name that they know.
        options: of connections to them (TLS). Any: redis-py takes its options by name, each of another type.
        credentials: options for a Sentinel that wants a password; one without users refuses them, so they come second.
    """

    def __init__(self, nodes: Iterable[Node], master: str, options: Mapping[str, Any], credentials: Mapping[str, Any]) -> None:
        self.nodes = list(nodes)
        self.master = master
        plain = {**options, "protocol": 2, "socket_timeout": SENTINEL_TIMEOUT_S, "socket_connect_timeout": SENTINEL_TIMEOUT_S}
        self.ways = (plain, {**plain, **credentials}) if credentials else (plain,)
        """Options of a connection, tried in order."""

    def was_right(self, sentinel: Node) -> None:
        """It is asked first from now on."""
        self.nodes.remove(sentinel)
        self.nodes.insert(0, sentinel)

    def none_found(self, reasons: Iterable[str]) -> redis.ConnectionError:
        """What to raise when no Sentinel led to a master."""
        return redis.ConnectionError(f"no master {self.master!r}: {'; '.join(reasons)}")


async def ask_sentinel(
    sentinels: Sentinels, sentinel: Node, *words: str, of: type[redis.asyncio.Connection] = redis.asyncio.Connection
) -> Any:
    """What one Sentinel answers to a question about the master.

    Args:
        words: the question, without the name of the master.
        of: class of the connection.

    Raises:
        redis.RedisError, OSError: it does not answer.
    """
    for options in sentinels.ways:
        connection: Any = of(host=sentinel[0], port=sentinel[1], **options)
        try:
            await connection.connect()
            await connection.send_command(*words, sentinels.master, check_health=False)
            return await connection.read_response()
        except redis.AuthenticationError:
            continue
        finally:
            await connection.disconnect(nowait=True)
    raise redis.ConnectionError(_LOCKED)


class _LedToMaster(redis.asyncio.Connection):
    """A connection that finds its own address."""

    sentinel_connection: type[redis.asyncio.Connection]

    def __init__(self, *, sentinels: Sentinels, **options: Any) -> None:
        super().__init__(**options)
        self._sentinels = sentinels

    async def connect(self) -> None:
        """Connects to the master.

        Raises:
            redis.ConnectionError: no Sentinel led to one.
        """
        if self.is_connected:
            return
        reasons: list[str] = []
        for sentinel in tuple(self._sentinels.nodes):
            try:
                self.host, self.port = await self._named_by(sentinel)
                await cast(Any, super()).connect()
                await self.send_command("ROLE", check_health=False)
                _refuse_replica(await self.read_response())
                self._sentinels.was_right(sentinel)
                return
            except _REFUSED:
                raise
            except (redis.RedisError, OSError) as error:
                reasons.append(_reason(sentinel, error))
                await self.disconnect(nowait=True)
        raise self._sentinels.none_found(reasons)

    async def _named_by(self, sentinel: Node) -> Node:
        return _address(await ask_sentinel(self._sentinels, sentinel, *_QUESTION, of=self.sentinel_connection))


class MasterConnection(_LedToMaster):
    """To the master, as Sentinels say."""

    sentinel_connection = redis.asyncio.Connection


class MasterSSLConnection(_LedToMaster, redis.asyncio.SSLConnection):
    """The same with TLS, to the Sentinels too."""

    sentinel_connection = redis.asyncio.SSLConnection


class _ThreadLedToMaster(redis.Connection):
    """`_LedToMaster` for threads."""

    sentinel_connection: type[redis.Connection]

    def __init__(self, *, sentinels: Sentinels, **options: Any) -> None:
        cast(Any, super()).__init__(**options)
        self._sentinels = sentinels

    def connect(self) -> None:
        """Connects to the master.

        Raises:
            redis.ConnectionError: no Sentinel led to one.
        """
        if self.is_connected:
            return
        reasons: list[str] = []
        for sentinel in tuple(self._sentinels.nodes):
            try:
                self.host, self.port = self._named_by(sentinel)
                cast(Any, super()).connect()
                cast(Any, self).send_command("ROLE", check_health=False)
                _refuse_replica(self.read_response())
                self._sentinels.was_right(sentinel)
                return
            except _REFUSED:
                raise
            except (redis.RedisError, OSError) as error:
                reasons.append(_reason(sentinel, error))
                cast(Any, self).disconnect()
        raise self._sentinels.none_found(reasons)

    def _named_by(self, sentinel: Node) -> Node:
        for options in self._sentinels.ways:
            connection: Any = self.sentinel_connection(host=sentinel[0], port=sentinel[1], **options)
            try:
                connection.connect()
                connection.send_command(*_QUESTION, self._sentinels.master, check_health=False)
                return _address(connection.read_response())
            except redis.AuthenticationError:
                continue
            finally:
                connection.disconnect()
        raise redis.ConnectionError(_LOCKED)


class ThreadMasterConnection(_ThreadLedToMaster):
    """To the master, as Sentinels say, for threads."""

    sentinel_connection = redis.Connection


class ThreadMasterSSLConnection(_ThreadLedToMaster, redis.SSLConnection):
    """The same with TLS, to the Sentinels too."""

    sentinel_connection = redis.SSLConnection


_LOCKED = "it takes neither no password nor ours"


def _refuse_replica(role: Any) -> None:
    if role[0] != b"master":
        raise redis.ConnectionError("the server that it names is no master (yet, or any more)")


def _address(reply: Any) -> Node:
    if reply is None:
        raise redis.ConnectionError("it knows no master of that name")
    return reply[0].decode(), int(reply[1])


def _reason(sentinel: Node, error: Exception) -> str:
    return f"Sentinel {sentinel[0]}:{sentinel[1]}: {error}"
