"""The heap of the inference pool, as many workers share it: least loaded, sticky, leased."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from pipeline.inference_pool import Assignment, InferencePool, PoolLooks, Server
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until

LEASE_S = 0.5
A, B, C = (Server(f"http://{name}:8000", "m", "1.0") for name in "abc")


@pytest.fixture
async def pool(client: AsyncClient, settings: QueueSettings) -> InferencePool:
    """Three servers of one run."""
    pool = InferencePool(client, settings.namespace, lease_s=30.0)
    await pool.attach("run1", [A, B, C])
    return pool


@pytest.fixture
def short(client: AsyncClient, settings: QueueSettings, pool: InferencePool) -> InferencePool:
    """The same pool as a process with short leases sees it."""
    return InferencePool(client, settings.namespace, lease_s=LEASE_S)


async def assigned(pool: InferencePool, job: str, attempt: int = 1, *, model: str = "") -> Assignment:
    found = await pool.assign("run1", model, job, attempt)
    assert found is not None
    return found


async def test_jobs_spread_evenly_however_many_ask_at_once(pool: InferencePool) -> None:
    found = await asyncio.gather(*(assigned(pool, f"j{number}") for number in range(300)))

    assert Counter(assignment.server for assignment in found) == {A.url: 100, B.url: 100, C.url: 100}
    assert await pool.load("run1") == {A.url: 100, B.url: 100, C.url: 100}


async def test_a_job_keeps_its_server_and_asking_again_changes_nothing(pool: InferencePool) -> None:
    first = await assigned(pool, "j1")
    await assigned(pool, "j2")

    assert await assigned(pool, "j1") == first
    assert sum((await pool.load("run1")).values()) == 2


async def test_a_pinned_job_has_one_server_whatever_the_load_and_waits_for_it(pool: InferencePool) -> None:
    """By its number among the servers sorted by address, drained ones too: which others are up just now must not move it (ADR 11)."""
    pinned = [await pool.assign("run1", "", f"j{number}", 1, pin=1) for number in range(5)]
    assert {found.server for found in pinned if found} == {sorted((A.url, B.url, C.url))[1]}
    wrapped = await pool.assign("run1", "", "k", 1, pin=3_000_000)
    assert wrapped is not None
    assert wrapped.server == sorted((A.url, B.url, C.url))[0]

    assert await pool.assign("run1", "", "l", 1, pin=1, avoid=[sorted((A.url, B.url, C.url))[1]]) is None
    down = next(server for server in (A, B, C) if server.url == sorted((A.url, B.url, C.url))[1])
    await pool.drain("run1", [down.url])
    assert await pool.assign("run1", "", "m", 1, pin=1) is None
    assert await pool.assign("nobodys", "", "m", 1, pin=1) is None


async def test_another_attempt_is_another_holder(pool: InferencePool) -> None:
    first = await assigned(pool, "j1", 1)
    second = await assigned(pool, "j1", 2)

    assert first.server != second.server
    await pool.release(first)
    assert sum((await pool.load("run1")).values()) == 1


async def test_a_new_server_gets_the_next_jobs(pool: InferencePool) -> None:
    await pool.detach("run1", [B.url, C.url])
    for number in range(4):
        await assigned(pool, f"j{number}")

    await pool.attach("run1", [B])

    assert [(await assigned(pool, f"k{number}")).server for number in range(4)] == [B.url] * 4


async def test_a_released_place_is_taken_next(pool: InferencePool) -> None:
    held = [await assigned(pool, f"j{number}") for number in range(6)]
    freed = next(assignment for assignment in held if assignment.server == B.url)

    await pool.release(freed)
    await pool.release(freed)  # again, as after a lost reply

    assert (await assigned(pool, "next")).server == B.url


async def test_the_load_of_a_process_that_died_ends_with_its_leases(pool: InferencePool, short: InferencePool) -> None:
    """Nothing drifts: a count that a dead process cannot take back would keep a server idle for ever."""
    for number in range(9):
        await assigned(short, f"dead{number}")
    alive = await assigned(pool, "alive")

    async def others_gone() -> bool:
        await assigned(pool, "alive")  # judges what has run out on the servers it looks at
        await pool.assign("run1", "", "probe", 1)
        return sum((await pool.load("run1")).values()) <= 2

    await wait_until(others_gone, "the leases of the dead process have run out")
    assert await pool.renew([alive]) == [True]


async def test_a_renewed_lease_lives_and_one_that_ran_out_is_told_so(
    client: AsyncClient, settings: QueueSettings, pool: InferencePool, short: InferencePool
) -> None:
    looks = PoolLooks(client, settings.namespace)
    kept, forgotten = await assigned(short, "kept"), await assigned(short, "forgotten")
    for _ in range(4):
        assert await short.renew([kept]) == [True]
        await asyncio.sleep(LEASE_S / 3)  # in all longer than a lease, which only time can use up

    async def ran_out() -> bool:
        await short.renew([kept])
        await looks.due(takes_ms=0, period_ms=0)  # a keeper sweeps it; until then it could be taken back
        return (await short.load("run1"))[forgotten.server] == (kept.server == forgotten.server)

    await wait_until(ran_out, "the other ran out")
    assert await short.renew([kept, forgotten]) == [True, False]


async def test_a_draining_server_keeps_those_it_has_and_gets_nobody(pool: InferencePool) -> None:
    held = [await assigned(pool, f"j{number}") for number in range(3)]
    await pool.drain("run1", [A.url])

    assert await pool.renew(held) == [True] * 3
    assert [await assigned(pool, f"j{number}") for number in range(3)] == held
    assert {(await assigned(pool, f"k{number}")).server for number in range(6)} == {B.url, C.url}


async def test_a_server_says_since_when_it_drains_and_takes_jobs_again(
    pool: InferencePool, client: AsyncClient, settings: QueueSettings
) -> None:
    """`since` was that of its last look that changed something: one that began to drain now was said to do so for hours."""
    key = Keys.of_pool(settings.namespace).pool_server("run1", A.url)

    async def is_new() -> bool:
        """Whether it stands so since now, and not since long ago."""
        found = (await pool.state("run1")).servers[0].since_ms > 1
        await ask(client, "HSET", key, "since", 1)
        return found

    assert await is_new()
    await pool.drain("run1", [A.url])
    assert await is_new()
    await pool.drain("run1", [A.url])
    assert not await is_new(), "it drained already"
    await pool.attach("run1", [A])
    assert await is_new()
    await pool.attach("run1", [A])
    assert not await is_new()
    await ask(client, "HSET", key, "alive", 0)
    await pool.drain("run1", [A.url])
    assert not await is_new(), "it is down all the while"
    await pool.detach("run1", [A.url])
    await pool.attach("run1", [A])
    assert await is_new(), "it was away"


async def test_without_a_server_that_is_up_there_is_no_assignment(pool: InferencePool) -> None:
    await pool.detach("run1", [A.url, B.url])
    await pool.drain("run1", [C.url])

    assert await pool.assign("run1", "", "j1", 1) is None
    assert await pool.assign("nobodys", "", "j1", 1) is None


async def test_a_server_of_another_run_is_never_given(pool: InferencePool) -> None:
    other = Server("http://other:8000", "m", "2.0")
    await pool.attach("run2", [other])

    assert {(await assigned(pool, f"j{number}")).server for number in range(9)} == {A.url, B.url, C.url}
    found = await pool.assign("run2", "", "j0", 1)
    assert found is not None
    assert (found.server, found.version) == (other.url, "2.0")


async def test_a_model_is_asked_for_by_name(pool: InferencePool) -> None:
    judge = Server("http://judge:8000", "judge", "")
    await pool.attach("run1", [judge])

    assert (await assigned(pool, "j1", model="judge")).server == judge.url
    assert {(await assigned(pool, f"j{number}", model="m")).server for number in range(9)} == {A.url, B.url, C.url}
    assert await pool.assign("run1", "unknown", "j1", 1) is None


async def test_servers_that_just_failed_are_avoided(pool: InferencePool) -> None:
    """All have fled from it, so it is the least loaded one."""
    for number in range(6):
        await assigned(pool, f"j{number}")
    mine = await assigned(pool, "mine")
    for number in range(6):
        found = await assigned(pool, f"j{number}")
        if found.server == mine.server:
            await pool.release(found)

    again = await pool.assign("run1", "", "mine", 1, avoid=[mine.server])

    assert again is not None
    assert again.server != mine.server
    assert (await pool.load("run1"))[mine.server] == 0, "and it is no load there any more"
    assert await pool.assign("run1", "", "mine", 1, avoid=[A.url, B.url, C.url]) is None


async def test_an_address_of_which_nothing_is_said_is_no_server(pool: InferencePool, client: AsyncClient, settings: QueueSettings) -> None:
    await ask(client, "SADD", Keys.of_pool(settings.namespace).pool_servers("run1"), "http://0:1")

    assert {(await assigned(pool, f"j{number}")).server for number in range(9)} == {A.url, B.url, C.url}
