"""Calls to Redis learn of their client's end, and it of its own from them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pipeline.errors import BrokerUnreachable, RunClosed, StaleIncarnation
from pipeline.redis_client import command_client
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from trainer_client.bodies import BodyStore
from trainer_client.calls import Calls
from trainer_client.contact import Contact
from trainer_client.errors import ClientClosed
from trainer_client.lifetime import Lifetime


async def test_a_fetch_of_bodies_in_an_outage_ends_with_its_client(tmp_path: Path) -> None:
    """It knew nothing of the client's end and went on for all its patience, five minutes by default, with the client closed."""
    life, contact = Lifetime("r"), Contact("r", patience_s=3600.0)
    client = command_client(QueueSettings(redis_url=f"unix://{tmp_path}/nobody.sock"))
    fetch = asyncio.create_task(BodyStore(client, Calls(contact, life)).fetch(["key"]), name="fetch")
    await wait_until(lambda: contact.outage, "the fetch waits for Redis")

    life.close()

    with pytest.raises(ClientClosed):
        await fetch
    await client.aclose()


async def test_a_call_is_made_again_with_the_same_arguments_until_redis_answers() -> None:
    contact = Contact("r", patience_s=3600.0)
    asked: list[tuple[int, int]] = []

    async def add(one: int, *, other: int) -> int:
        asked.append((one, other))
        if len(asked) < 2:
            raise BrokerUnreachable("away")
        return one + other

    assert await Calls(contact, Lifetime("r")).make(add, 1, other=2) == 3
    assert asked == [(1, 2), (1, 2)]


async def test_a_fenced_client_makes_no_further_call() -> None:
    calls = Calls(Contact("r", patience_s=1.0), Lifetime("r"))

    async def fenced() -> None:
        raise StaleIncarnation("r", 1, "2")

    async def unreachable() -> None:
        raise AssertionError("a call was made after the end")

    with pytest.raises(StaleIncarnation):
        await calls.make(fenced)
    with pytest.raises(StaleIncarnation):
        await calls.make(unreachable)


async def test_a_run_that_takes_no_more_work_refuses_only_calls_that_need_it_open() -> None:
    calls = Calls(Contact("r", patience_s=1.0), Lifetime("r"))

    async def closed() -> None:
        raise RunClosed("r", "cancelled")

    async def read() -> str:
        return "a result"

    with pytest.raises(RunClosed):
        await calls.make(closed)

    with pytest.raises(RunClosed):
        await calls.make_if_open(read)
    assert await calls.make(read) == "a result"
