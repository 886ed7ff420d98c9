"""A connection carries one command at a time: whatever would give a reply to the wrong caller ends the connection instead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from pipeline.errors import BrokerUnreachable
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.settings import QueueSettings


@pytest.fixture
async def talkative(tmp_path: Path) -> AsyncIterator[Path]:
    """A server that says OK to everything, and to what asks for it twice, or garbage."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await reader.read(1 << 16):
            reply = b"+OK\r\n" * request.count(b"*")
            if b"twice" in request:
                reply += b"+OK\r\n"
            writer.write(b"?what\r\n" if b"garbage" in request else reply)
        writer.close()

    socket = tmp_path / "s"
    async with await asyncio.start_unix_server(serve, socket):
        yield socket


@pytest.mark.one_server
@pytest.mark.parametrize("word", ["twice", "garbage"])
async def test_a_server_that_says_what_nobody_asked_for_is_an_outage(talkative: Path, word: str) -> None:
    client = command_client(QueueSettings(redis_url=f"unix://{talkative}"))

    with pytest.raises((BrokerUnreachable, redis.InvalidResponse)):
        await ask(client, "ECHO", word)

    assert await ask(client, "ECHO", "once") == b"OK"
    await client.aclose()


async def test_a_reply_that_comes_in_many_pieces_is_whole(client: AsyncClient) -> None:
    word = b"x" * 5_000_000

    assert await ask(client, "ECHO", word) == word


async def test_replies_go_to_who_asked_when_others_are_cancelled(client: AsyncClient) -> None:
    asked = [asyncio.create_task(ask(client, "ECHO", str(number))) for number in range(150)]
    for turn in range(60):
        asked[2 * turn].cancel()
        await asyncio.sleep(0)

    replies = await asyncio.gather(*asked, return_exceptions=True)

    assert all(reply == b"%d" % number or isinstance(reply, asyncio.CancelledError) for number, reply in enumerate(replies))
    assert [reply for number, reply in enumerate(replies) if number % 2] == [b"%d" % number for number in range(1, 150, 2)]


async def test_a_word_that_cannot_be_sent_is_told_and_harms_nothing(client: AsyncClient) -> None:
    with pytest.raises(redis.DataError, match="ECHO"):
        await ask(client, "ECHO", None)  # type: ignore[arg-type]  # what a caller must not do

    assert await ask(client, "ECHO", 1.5) == b"1.5"
    assert await ask(client, "ECHO", "é") == "é".encode()


@pytest.mark.one_server
async def test_whoever_waits_hears_that_the_client_was_closed(settings: QueueSettings) -> None:
    client = command_client(settings)
    await ask(client, "PING")
    waiting = asyncio.create_task(ask(client, "BLPOP", "{links}:nothing", 4))
    await asyncio.sleep(0)

    await client.aclose()

    with pytest.raises(BrokerUnreachable, match="the client closed"):
        await waiting
