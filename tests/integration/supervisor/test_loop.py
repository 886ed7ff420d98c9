"""The process: woken by events, at peace with their loss, with outages, and with others like it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.scripts import Scripts
from pipeline.scripts.step_calls import StepScripts
from pipeline.settings import QueueSettings
from pipeline.supervisor.drain import Drain
from pipeline.supervisor.loading import LedgerReader
from pipeline.supervisor.loop import GROUP, Supervisor
from pipeline.supervisor.step_spec import StepSpec
from pipeline.testing import PrivateServer, wait_until
from tests.integration.supervisor.fleet import RUN, Fleet, mixed

A_SPEC = StepSpec(target=2, n=4, over=1.0)
NEVER_S = 60.0
"""A period that does not come within a test: what happens was woken."""


@asynccontextmanager
async def supervising(settings: QueueSettings, *, name: str = "s1", period_s: float = NEVER_S) -> AsyncIterator[asyncio.Task[None]]:
    stop = asyncio.Event()
    task = asyncio.create_task(Supervisor(settings, name=name, period_s=period_s).run(stop), name=name)
    try:
        yield task
    finally:
        stop.set()
        await task


async def flying(fleet: Fleet) -> int:
    return len(await fleet.members(fleet.scripts.keys.flying(RUN)))


async def consumers(client: AsyncClient, keys: Keys) -> int | None:
    """Names that the supervisors' group knows; None = there is no group."""
    if not await ask(client, "EXISTS", keys.reward):
        return None
    for flat in await ask(client, "XINFO", "GROUPS", keys.reward):
        group = dict(zip(flat[::2], flat[1::2], strict=True))
        if group[b"name"] == GROUP.encode():
            return int(group[b"consumers"])
    return None


async def has_group(client: AsyncClient, keys: Keys) -> bool:
    return await consumers(client, keys) is not None


async def play(fleet: Fleet, steps: int) -> None:
    """Works until so many steps are reached."""

    async def played() -> bool:
        await fleet.work()
        for group in fleet.groups():
            await fleet.end(group, mixed)
        return len(await fleet.records("step")) >= steps

    await wait_until(played, f"{steps} steps are reached", timeout_s=20)


async def test_it_is_woken_by_what_trainers_and_workers_do(fleet: Fleet, settings: QueueSettings, client: AsyncClient, keys: Keys) -> None:
    async with supervising(settings, period_s=2.0):
        await wait_until(lambda: has_group(client, keys), "the supervisor reads")
        await fleet.open(0, A_SPEC)
        await wait_until(lambda: fleet.records("note"), "the empty reserve is announced")
        await fleet.push_many(20)
        await wait_until(lambda: flying(fleet), "groups in flight")
        await fleet.work()
        for group in fleet.groups()[:2]:
            await fleet.end(group, mixed)
        await wait_until(lambda: fleet.records("step"), "the step is reached")
        await fleet.open(1, A_SPEC)
        await wait_until(lambda: flying(fleet), "groups in flight")
        await fleet.steps.end_prompts(RUN, fleet.incarnation)


async def test_what_happened_while_none_ran_is_found_at_the_start(
    fleet: Fleet, settings: QueueSettings, keys: Keys, client: AsyncClient
) -> None:
    """All supervisors are down and the reward stream is trimmed meanwhile: nothing is lost."""
    await fleet.push_many(20)
    await fleet.open(0, A_SPEC)
    await fleet.supervise()
    await fleet.work()
    for group in fleet.groups()[:2]:
        await fleet.end(group, mixed)
    await ask(client, "DEL", keys.reward)

    async with supervising(settings, period_s=0.5):
        await wait_until(lambda: fleet.records("step"), "the step is reached")


async def test_a_lost_event_costs_a_period(fleet: Fleet, settings: QueueSettings, keys: Keys, client: AsyncClient) -> None:
    async with supervising(settings, period_s=0.3):
        await wait_until(lambda: has_group(client, keys), "the supervisor reads")
        await fleet.push_many(20)
        await fleet.open(0, A_SPEC)
        await wait_until(lambda: flying(fleet), "groups in flight")
        await fleet.work()
        # the read position is moved beyond all that will come: no event ever wakes it again
        await ask(client, "XGROUP", "SETID", keys.reward, GROUP, "9999999999999-0")
        for group in fleet.groups()[:2]:
            await fleet.end(group, mixed)

        await wait_until(lambda: fleet.records("step"), "the step is reached")


async def test_a_reward_stream_that_goes_is_made_again(fleet: Fleet, settings: QueueSettings, keys: Keys, client: AsyncClient) -> None:
    async with supervising(settings, period_s=0.5):
        await wait_until(lambda: has_group(client, keys), "the supervisor reads")
        await ask(client, "DEL", keys.reward)
        await wait_until(lambda: has_group(client, keys), "the group is there again")
        await fleet.push_many(20)
        await fleet.open(0, A_SPEC)
        await play(fleet, 1)


async def test_it_leaves_no_consumer_behind(fleet: Fleet, settings: QueueSettings, keys: Keys, client: AsyncClient) -> None:
    async with supervising(settings, period_s=0.2):
        await wait_until(lambda: has_group(client, keys), "the supervisor reads")
        await ask(client, "XADD", keys.reward, "*", "kind", "job", "run", RUN)
        await wait_until(lambda: consumers(client, keys), "the supervisor is known by its name")

    assert await consumers(client, keys) == 0


async def test_two_supervisors_share_the_work_of_many_steps(fleet: Fleet, settings: QueueSettings, keys: Keys) -> None:
    await fleet.push_many(300)
    for index in range(6):
        await fleet.open(index, A_SPEC)

    async with supervising(settings, name="s1", period_s=0.2), supervising(settings, name="s2", period_s=0.2):
        await play(fleet, 6)

    steps = await fleet.records("step")
    joined = [group for step in steps for group in step["groups"].split()]
    assert sorted(int(step["k"]) for step in steps) == list(range(6))
    assert len(joined) == len(set(joined)) == 12


@pytest.mark.one_server
async def test_a_supervisor_goes_on_after_the_server_was_killed(make_server: Callable[..., PrivateServer]) -> None:
    server = make_server(persistence="always")
    settings = QueueSettings(redis_url=server.url)
    client, keys = command_client(settings), Keys.of_shard("rs", 0)
    steps, reader = StepScripts(client, keys), LedgerReader(client, keys)
    fleet = Fleet(Scripts(client, keys), steps, Drain(reader, steps, window=256), reader)
    await fleet.connect()
    await fleet.push_many(50)
    await fleet.open(0, A_SPEC)
    try:
        async with supervising(settings, period_s=0.2) as task:
            await play(fleet, 1)
            server.kill()
            server.start()
            await client.connection_pool.disconnect()  # the test's own: a script call is tried again, a plain command is not
            await fleet.open(1, A_SPEC)
            await play(fleet, 2)
            assert not task.done()
    finally:
        await client.aclose()


@pytest.mark.one_server
async def test_each_shard_is_supervised(redis_server: PrivateServer) -> None:
    settings = QueueSettings(redis_url=redis_server.url, namespace="shards", shards=2)
    client = command_client(settings)
    try:
        async with supervising(settings, period_s=0.2):
            for shard in range(2):
                keys = Keys.of_shard("shards", shard)
                steps, reader = StepScripts(client, keys), LedgerReader(client, keys)
                fleet = Fleet(Scripts(client, keys), steps, Drain(reader, steps, window=256), reader)
                await fleet.connect()
                await fleet.push_many(10)
                await fleet.open(0, A_SPEC)
                await wait_until(partial(flying, fleet), "groups in flight")
    finally:
        found = [key async for key in client.scan_iter(match="{shards:*", count=1000)]
        await client.unlink(*found)
        await client.aclose()
