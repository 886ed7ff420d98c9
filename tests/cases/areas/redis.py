"""Cases of Redis: facts about servers, sent as raw commands, and scenarios for the product.

A fact is checked on every server that the tests run on, with a server of its own that nothing else uses: facts change its memory bound.
A scenario is a story of workers and jobs; `scenarios.SCENARIOS` holds the test that plays each, by the id of its case.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import hiredis

from pipeline.testing.servers import PrivateServer, found_servers
from tests.cases.areas.redis_scenarios import SCENARIOS
from tests.cases.case import BadCase, Case, Check, Difference

_REPLY_LIMIT_S = 15.0
"""Facts block for at most two seconds."""
FILLER_BYTES = 2 * 1024 * 1024
"""A server in use holds something: an empty Redis 8 needs less than the megabyte that a fact takes for too little."""


@asynccontextmanager
async def area() -> AsyncIterator[Check]:
    """Servers start with the first fact."""
    with ExitStack() as stack:
        servers: list[PrivateServer] = []

        async def check(case: Case) -> list[Difference]:
            kind = case.input.get("kind")
            if kind == "scenario":
                return await _scenario(case)
            if kind != "server_fact":
                raise BadCase(f"`kind` must be server_fact or scenario, it is {kind!r}")
            if not servers:
                servers.extend(await asyncio.to_thread(lambda: [stack.enter_context(PrivateServer(kind)) for kind in found_servers()]))
            return await _fact(servers, case)

        yield check


async def _scenario(case: Case) -> list[Difference]:
    play = SCENARIOS.get(case.id)
    if play is None:
        return [Difference("scenario", f"a test that plays {case.id}", "no such scenario in tests/cases/areas/redis_scenarios.py")]
    return await play(case)


async def _fact(servers: list[PrivateServer], case: Case) -> list[Difference]:
    differences: list[Difference] = []
    asked = 0
    for server in servers:
        async with _connected(server) as wire:
            if await _version(wire) < _numbers(str(case.input.get("redis_at_least", "0"))):
                continue
            asked += 1
            await wire.send("CONFIG", "SET", "maxmemory", "0")
            await wire.send("FLUSHALL")
            await wire.send("SET", "something that is there already", "x" * FILLER_BYTES)
            for command, expected in zip(case.input["commands"], case.expect["replies"], strict=True):
                found = await wire.send(*map(str, command))
                if not _fits(expected, found):
                    differences.append(Difference(f"{server.kind.name}: {' '.join(map(str, command))}", expected, found))
            await wire.send("CONFIG", "SET", "maxmemory", "0")
    if not asked:
        return [
            Difference("server", f"one of version {case.input.get('redis_at_least')} at least", [server.kind.name for server in servers])
        ]
    return differences


class _Wire:
    """A connection that shows replies as the server sent them: texts, numbers, null, lists, and errors as an object."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._replies = hiredis.Reader(encoding="utf-8")

    async def send(self, *words: str) -> object:
        parts = [word.encode() for word in words]
        self._writer.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
        async with asyncio.timeout(_REPLY_LIMIT_S):
            while (reply := self._replies.gets()) is False:
                piece = await self._reader.read(65_536)
                if not piece:
                    raise ConnectionError(f"the server closed the connection during {' '.join(words)}")
                self._replies.feed(piece)
        return _plain(reply)


@asynccontextmanager
async def _connected(server: PrivateServer) -> AsyncIterator[_Wire]:
    reader, writer = await asyncio.open_unix_connection(str(server.socket))
    try:
        yield _Wire(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


def _plain(reply: object) -> object:
    if isinstance(reply, list):
        return [_plain(item) for item in reply]
    return {"error": str(reply)} if isinstance(reply, hiredis.ReplyError) else reply


def _fits(expected: object, found: object) -> bool:
    if isinstance(expected, dict):
        if expected.get("any") is True:
            return True
        return isinstance(found, dict) and str(expected.get("error_contains")) in str(found.get("error"))
    if isinstance(expected, list):
        return isinstance(found, list) and len(expected) == len(found) and all(map(_fits, expected, found))
    return expected == found


async def _version(wire: _Wire) -> tuple[int, ...]:
    """The version of Redis that the server is compatible with; Valkey says it beside its own."""
    said = str(await wire.send("INFO", "server"))
    versions = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
    return _numbers(versions["redis_version"])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
