"""Members of a group ask for one prompt; who asked is answered, whatever became of the others."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pipeline import codec
from pipeline.keys import Keys
from pipeline.messages import JobTemplate, Prompt
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Begun, Claim
from workers.stages.bodies import MOST_KEPT_PROMPT_BYTES, Bodies

RUN, GROUP = "run1", "run1.p.0"


def a_member(number: int, *, incarnation: int = 1) -> Begun:
    claim = Claim("s:init", f"{number}-0", f"{GROUP}.{number}", RUN, GROUP, number, "math", "nonce")
    return Begun(claim, "ok", 1, "t", incarnation=incarnation)


async def put_prompt(client: AsyncClient, keys: Keys, question: str) -> None:
    await ask(client, "SET", keys.prompt(GROUP), codec.encode(Prompt(id="p", data={"question": question})), "PX", 60_000)


async def reads(client: AsyncClient) -> int:
    """Keys that were looked up on this server so far."""
    found = await ask(client, "INFO", "stats")
    return int(found["keyspace_hits"]) + int(found["keyspace_misses"])


@pytest.fixture
async def bodies(client: AsyncClient, keys: Keys) -> Bodies:
    """A group's prompt and template in place, the template read."""
    await ask(client, "SET", keys.template(RUN, "t"), codec.encode(JobTemplate(task="math")), "PX", 60_000)
    await put_prompt(client, keys, "2 + 2?")
    bodies = Bodies(client, keys)
    await bodies.spec(a_member(0, incarnation=0))
    return bodies


@pytest.mark.one_server
async def test_members_that_begin_together_read_their_prompt_once(client: AsyncClient, bodies: Bodies) -> None:
    before = await reads(client)

    specs = await asyncio.gather(*(bodies.spec(a_member(number)) for number in range(8)))
    later = await bodies.spec(a_member(8))

    assert await reads(client) == before + 1
    assert [(spec.member, spec.prompt.data) for spec in [*specs, later]] == [(number, {"question": "2 + 2?"}) for number in range(9)]


@pytest.mark.one_server
async def test_a_prompt_that_one_member_changed_is_whole_for_the_next(bodies: Bodies) -> None:
    first = await bodies.spec(a_member(0))
    cast(dict[str, Any], first.prompt.data)["question"] = "3 + 3?"

    assert (await bodies.spec(a_member(1))).prompt.data == {"question": "2 + 2?"}


@pytest.mark.one_server
async def test_the_next_incarnation_of_a_run_reads_its_own_prompt(client: AsyncClient, keys: Keys, bodies: Bodies) -> None:
    """A run's name may come back, long after, with other prompts under the same ids."""
    await bodies.spec(a_member(0, incarnation=1))
    await put_prompt(client, keys, "4 + 4?")

    assert (await bodies.spec(a_member(0, incarnation=2))).prompt.data == {"question": "4 + 4?"}


@pytest.mark.one_server
async def test_a_large_prompt_is_not_kept(client: AsyncClient, keys: Keys, bodies: Bodies) -> None:
    await put_prompt(client, keys, "x" * MOST_KEPT_PROMPT_BYTES)
    before = await reads(client)

    for number in range(3):
        await bodies.spec(a_member(number))

    assert await reads(client) == before + 3


@pytest.mark.one_server
async def test_a_member_that_gives_up_waiting_does_not_take_the_answer_from_the_others(keys: Keys, bodies: Bodies) -> None:
    key = keys.prompt(GROUP)
    first, second = (asyncio.ensure_future(bodies.get(key)) for _ in range(2))
    await asyncio.sleep(0)  # both have asked

    first.cancel()

    assert codec.decode(Prompt, await second).data == {"question": "2 + 2?"}
    with pytest.raises(asyncio.CancelledError):
        await first
