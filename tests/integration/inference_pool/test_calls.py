"""Calls begin and end in Redis: what a pause sees, who may begin, what is left of a call whose process is gone."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.inference_pool import AllowedLabels, Assignment, Begun, Call, DueLook, EndedCall, InferencePool, PoolLooks, Seen, Server
from pipeline.inference_pool.pauses import PoolPauses
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask, redis_now_ms
from pipeline.scripts import Scripts
from pipeline.scripts.calls import new_nonce
from pipeline.settings import QueueSettings

RUN, A, B = "run1", Server("http://a"), Server("http://b")
LABEL, NEXT = f"{RUN}/1.1", f"{RUN}/1.2"


@pytest.fixture
async def pool(client: AsyncClient, settings: QueueSettings) -> InferencePool:
    """Two servers of one run."""
    pool = InferencePool(client, settings.namespace, lease_s=30.0)
    await pool.attach(RUN, [A, B])
    return pool


@pytest.fixture
def looks(client: AsyncClient, settings: QueueSettings) -> PoolLooks:
    return PoolLooks(client, settings.namespace)


@pytest.fixture
def pauses(client: AsyncClient, settings: QueueSettings) -> PoolPauses:
    return PoolPauses(client, settings.namespace)


async def assigned(pool: InferencePool, job: str = "j1") -> Assignment:
    found = await pool.assign(RUN, "", job, 1)
    assert found is not None
    return found


async def begin(pool: InferencePool, assignment: Assignment, name: str = "c1") -> object:
    (answer,) = await pool.begin_calls(RUN, [Call(assignment, name)])
    return answer


async def looked(looks: PoolLooks, url: str, *, alive: bool = True, label: str = "", started: str = "1", why: str = "") -> None:
    await looks.looked(DueLook(RUN, url, True, "", ()), Seen(alive=alive, label=label, started=started, why=why))


async def in_flight(pool: InferencePool) -> dict[str, int]:
    return {server.url: server.calls for server in (await pool.state(RUN)).servers if server.calls}


async def test_a_call_that_began_before_a_pause_is_seen_by_it_however_late_it_is_sent(pool: InferencePool, pauses: PoolPauses) -> None:
    """Between its begin and its sending a call was nowhere: the pause found nothing in flight, the weights changed, and then it came."""
    mine, later = await assigned(pool), await assigned(pool, "j2")
    assert isinstance(await begin(pool, mine), Begun)

    await pauses.take(RUN, 1, "t1", why="update", mode="wait", to=NEXT, lease_s=30)

    assert await in_flight(pool) == {mine.server: 1}
    assert await begin(pool, later, "c2") == "paused"
    await pool.end_calls(RUN, [EndedCall(Call(mine, "c1"))])
    assert await in_flight(pool) == {}

    await pauses.resume(RUN, "t1", "u1", label=NEXT, labels={A.url: NEXT, B.url: NEXT})
    assert await begin(pool, later, "c2") == Begun(NEXT, AllowedLabels(NEXT, NEXT))


async def test_a_begin_whose_reply_was_lost_is_one_call(pool: InferencePool) -> None:
    mine = await assigned(pool)

    assert isinstance(await begin(pool, mine), Begun)
    assert isinstance(await begin(pool, mine), Begun)
    assert isinstance(await begin(pool, mine, "c2"), Begun)

    assert await in_flight(pool) == {mine.server: 2}
    await pool.end_calls(RUN, [EndedCall(Call(mine, "c1"))])
    assert await in_flight(pool) == {mine.server: 1}


async def test_a_rerouted_call_is_counted_once_however_often_its_end_is_said(pool: InferencePool) -> None:
    mine = await assigned(pool)
    await begin(pool, mine)
    ended = EndedCall(Call(mine, "c1"), rerouted=True, lost_tokens=345)

    for _ in range(2):
        await pool.end_calls(RUN, [ended])

    state = await pool.state(RUN)
    assert (state.rerouted, state.lost_tokens) == (1, 345)


async def test_a_call_only_begins_where_it_may(pool: InferencePool, looks: PoolLooks) -> None:
    mine = await assigned(pool)
    other = B if mine.server == A.url else A
    await pool.drain(RUN, [mine.server])
    assert isinstance(await begin(pool, mine), Begun), "a draining server keeps its jobs"

    await looked(looks, mine.server, alive=False, why="refused")
    assert isinstance(await begin(pool, mine), Begun), "one look without an answer is none"
    await looked(looks, mine.server, alive=False, why="refused")
    assert await begin(pool, mine) == "down"
    await looked(looks, mine.server)
    assert isinstance(await begin(pool, mine), Begun)

    await pool.detach(RUN, [mine.server])
    assert await begin(pool, mine) == "gone"
    never = Assignment(RUN, other.url, "", "nobody:1")
    assert await begin(pool, never) == "gone", "nobody has a call without a lease"


async def test_servers_of_a_run_that_is_over_are_left_alone_until_a_trainer_connects(
    client: AsyncClient, settings: QueueSettings, pool: InferencePool, looks: PoolLooks
) -> None:
    """They were asked how they are each second for the week that what is said of them stands. What still runs there is ended still."""
    keys = Keys.of_shard(settings.namespace, 0)
    scripts = Scripts(client, keys)

    async def due(looks: PoolLooks) -> dict[str, tuple[bool, tuple[str, ...]]]:
        return {look.url: (look.is_judged, look.to_abort) for look in await looks.due(takes_ms=0)}

    assert await due(looks) == {A.url: (True, ()), B.url: (True, ())}, "its trainer is to come"
    await scripts.connect_run(RUN, nonce=new_nonce(), ttl_s=3600)
    mine = await assigned(pool)
    await begin(pool, mine)
    await pool.release(mine)
    await ask(client, "HSET", keys.run(RUN), "st", "closed")  # as close_gone_runs does

    found = await due(PoolLooks(client, settings.namespace))
    assert {is_judged for is_judged, _ in found.values()} == {False}
    assert found[mine.server] == (False, ("c1",))

    await scripts.connect_run(RUN, nonce=new_nonce(), ttl_s=3600)
    assert {is_judged for is_judged, _ in (await due(looks)).values()} == {True}
    await ask(client, "DEL", keys.run(RUN))
    await ask(client, "SET", keys.run(RUN), "no run", "EX", 60)
    assert {is_judged for is_judged, _ in (await due(PoolLooks(client, settings.namespace))).values()} == {True}


async def test_a_call_of_a_lease_that_ran_out_is_handed_to_keepers_until_its_server_took_the_abort(
    client: AsyncClient, settings: QueueSettings, pool: InferencePool, looks: PoolLooks
) -> None:
    """A keeper that died between sweep and abort had taken the id with it, and the call ran to its end for nobody."""
    short = InferencePool(client, settings.namespace, lease_s=0.2)
    mine = await assigned(short)
    assert isinstance((await short.begin_calls(RUN, [Call(mine, "c1")]))[0], Begun)
    await short.begin_calls(RUN, [Call(mine, "c2")])

    async def due() -> dict[str, tuple[str, ...]]:
        return {look.url: look.to_abort for look in await looks.due(takes_ms=50, period_ms=10) if look.to_abort}

    found: dict[str, tuple[str, ...]] = {}
    while not found:  # its lease runs out, which only time can make it
        found = await due()
    assert {url: sorted(ids) for url, ids in found.items()} == {mine.server: ["c1", "c2"]}
    assert await in_flight(pool) == {}
    again: dict[str, tuple[str, ...]] = {}
    while not again:  # the first keeper is dead: its look ends, and another has the same
        again = await due()
    assert again == found

    await looks.aborted(DueLook(RUN, mine.server, True, "", again[mine.server]))
    await pool.end_calls(RUN, [EndedCall(Call(mine, "c1"))])

    assert [server.to_abort for server in (await pool.state(RUN)).servers] == [0, 0]
    assert (await pool.state(RUN)).aborted == 2


async def test_leases_that_ran_out_while_redis_was_away_are_their_workers_again(
    client: AsyncClient, settings: QueueSettings, pool: InferencePool, looks: PoolLooks
) -> None:
    """After an outage of more than two leases calls in flight were forgotten, or swept and aborted: 24 ran, 15 were known."""
    short = InferencePool(client, settings.namespace, lease_s=0.2)
    lives, dead = await assigned(short, "lives"), await assigned(short, "dead")
    for assignment in (lives, dead):
        assert isinstance(await begin(short, assignment, assignment.holder), Begun)
    key = Keys.of_pool(settings.namespace).pool_round

    await looks.due(takes_ms=0, period_ms=0)
    while await ask(client, "ZCOUNT", Keys.of_pool(settings.namespace).pool_leases(RUN, lives.server), await redis_now_ms(client), "+inf"):
        pass  # it runs out, which only time can make it
    await ask(client, "HINCRBY", key, "at", -5000)  # nobody asked for five seconds

    assert [look.to_abort for look in await looks.due(takes_ms=0, period_ms=0)] == [(), ()]
    assert sum((await in_flight(pool)).values()) == 2, "nothing is judged yet"
    assert await pool.renew([lives]) == [True]

    await ask(client, "HSET", key, "judges", 0)  # the time of grace is over
    swept = [look.to_abort for look in await looks.due(takes_ms=0, period_ms=0)]
    assert sorted(swept) == [(), (dead.holder,)]
    assert await in_flight(pool) == {lives.server: 1}
    assert await pool.renew([dead]) == [False]


async def test_a_lease_given_back_with_a_call_in_flight_leaves_that_to_keepers(pool: InferencePool, looks: PoolLooks) -> None:
    mine = await assigned(pool)
    await begin(pool, mine)

    await pool.release(mine)

    assert [look.to_abort for look in await looks.due() if look.url == mine.server] == [("c1",)]


async def test_a_server_is_looked_at_by_one_keeper_at_a_time(looks: PoolLooks, pool: InferencePool) -> None:
    """Each of a hundred workers has a keeper; a server was asked by all of them, each second."""
    due = await asyncio.gather(*(looks.due() for _ in range(8)))

    assert sorted(look.url for found in due for look in found) == [A.url, B.url]


async def test_a_server_that_left_is_forgotten_when_nothing_of_the_run_is_left_there(
    client: AsyncClient, settings: QueueSettings, pool: InferencePool, looks: PoolLooks
) -> None:
    mine = await assigned(pool)
    await begin(pool, mine)
    await pool.detach(RUN, [mine.server])
    assert [server.url for server in (await pool.state(RUN)).servers] == [(B if mine.server == A.url else A).url]

    await pool.release(mine)
    (look,) = [found for found in await looks.due(takes_ms=0) if found.url == mine.server]
    assert (look.is_judged, look.to_abort) == (False, ("c1",))
    await looks.aborted(look, period_ms=0)

    assert mine.server not in [found.url for found in await looks.due()]
    assert await client.exists(f"{{{settings.namespace}:pool}}:srv:{RUN}:{mine.server}") == 0


async def test_a_server_that_gets_no_job_is_not_forgotten_while_its_run_lives(
    pool: InferencePool, looks: PoolLooks, client: AsyncClient, settings: QueueSettings
) -> None:
    """One that was down, or drained, for a week while the others worked: assignments renew only what is said of their own server.
    It was looked at no more, and another run could be given its address."""
    keys = Keys.of_pool(settings.namespace)
    said, holds = keys.pool_server(RUN, A.url), keys.key("holds", A.url)
    for key in (said, holds):
        await ask(client, "PEXPIRE", key, 60_000)

    await looked(looks, A.url)

    lives_ms = await ask(client, "PTTL", keys.pool_run(RUN))
    for key in (said, holds):
        assert lives_ms - 60_000 < await ask(client, "PTTL", key) <= lives_ms + 1000
