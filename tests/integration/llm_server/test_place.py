"""A server's place in a run, given up in two steps: jobs first, then calls (ops/llm_server/place.py)."""

from __future__ import annotations

import asyncio

import pytest

from ops.llm_server.place import PlaceInRun, start_label
from pipeline.inference_pool import Call, InferencePool, Server
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until

RUN = "run1"
MINE, OTHER, DEAD = (Server(f"http://{name}:8000", "m", start_label(RUN)) for name in ("mine", "other", "dead"))


@pytest.fixture
def pool(client: AsyncClient, settings: QueueSettings) -> InferencePool:
    return InferencePool(client, settings.namespace, lease_s=30.0)


async def never() -> bool:
    return False


def a_place(pool: InferencePool, *gone: Server) -> PlaceInRun:
    return PlaceInRun(pool, RUN, MINE, gone=[server.url for server in gone], stop=asyncio.Event())


async def urls(pool: InferencePool) -> list[str]:
    return [server.url for server in (await pool.state(RUN)).servers]


async def test_a_place_is_had_while_it_is_held_and_that_of_the_dead_one_is_given_up(pool: InferencePool) -> None:
    await pool.attach(RUN, [DEAD])

    async with a_place(pool, DEAD):
        assert await urls(pool) == [MINE.url]

    assert await urls(pool) == []


async def test_a_drain_waits_for_the_jobs_of_the_server_and_gives_it_no_new_one(pool: InferencePool) -> None:
    async with a_place(pool) as place:
        job = await pool.assign(RUN, "m", "j1", 1)
        assert job is not None
        await pool.attach(RUN, [OTHER])

        draining = asyncio.create_task(place.drain(600.0, never))

        async def drains() -> bool:
            return any(server.draining for server in (await pool.state(RUN)).servers if server.url == MINE.url)

        await wait_until(drains, "it drains")
        later = await pool.assign(RUN, "m", "j2", 1)
        assert later is not None
        assert later.server == OTHER.url
        [begun] = await pool.begin_calls(RUN, [Call(job, "c1")])
        assert not isinstance(begun, str), "the job that it has goes on there"
        assert not draining.done()

        await pool.release(job)
        await draining
        assert await urls(pool) == [OTHER.url]


async def test_a_server_leaves_before_it_ends_and_calls_in_flight_may_end(pool: InferencePool) -> None:
    """A job that does not end in time begins its next call elsewhere; cut off in the middle, what was sampled would be lost."""
    in_flight = [True]
    asked = asyncio.Event()

    async def is_busy() -> bool:
        asked.set()
        return in_flight[0]

    async with a_place(pool) as place:
        job = await pool.assign(RUN, "m", "j1", 1)
        assert job is not None

        draining = asyncio.create_task(place.drain(1.0, is_busy))
        await wait_until(asked.is_set, "it waits for calls")

        assert await urls(pool) == []
        [begun] = await pool.begin_calls(RUN, [Call(job, "c2")])
        assert begun == "gone"
        in_flight[0] = False
        await draining


async def test_no_two_starts_have_one_label() -> None:
    assert len({start_label(RUN) for _ in range(100)}) == 100
