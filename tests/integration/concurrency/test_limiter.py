"""Jobs before the model in a process with a limit: who waits, who goes on, what is said in the pool. Pressure is told by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext

import pytest

from pipeline.errors import JobCancelled
from pipeline.inference_pool import InferencePool, PlacesOf, PoolPlaces, RunLoad, SeenLoad, Server, read_places
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.settings import QueueSettings
from pipeline.testing import LossyProxy, PrivateServer, wait_until
from workers.agent.limits import ActiveTime
from workers.stages.concurrency import JobPlace, Limiter
from workers.stages.concurrency.limiter import HELD_PROGRESS_S, REMEMBERED_S, STRANGER_S

pytestmark = pytest.mark.one_server
RUN = "run1"


def passes() -> None:
    """A gate that is open."""


def queue_at(running: int, waiting: int) -> RunLoad:
    return RunLoad(False, 0, 0, (SeenLoad("http://a", running, waiting, 0.2, 300),))


def pressed_to(limiter: Limiter, places: int, *, of: int, run: str = RUN) -> None:
    """Three looks at a queue."""
    for _ in range(3):
        limiter.take_look(run, "", queue_at(places, of - places))
    standing = limiter.standing(run)
    assert standing is not None
    assert standing.limit == places


class Calling:
    """A job that makes one call, which the test ends."""

    def __init__(self, place: JobPlace) -> None:
        self.place = place
        self.called = asyncio.Event()
        self.answer = asyncio.Event()
        self.promised: list[float] = []
        self._task: asyncio.Task[None] | None = None

    def start(
        self, *, gate: Callable[[], None] = passes, waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> asyncio.Task[None]:
        self._task = asyncio.create_task(self._call(gate, waiting))
        return self._task

    async def _call(self, gate: Callable[[], None], waiting: Callable[[], AbstractContextManager[None]]) -> None:
        async with self.place.call(gate, waiting, self.promised.append):
            self.called.set()
            await self.answer.wait()


@pytest.fixture
async def limiter(client: AsyncClient, settings: QueueSettings) -> AsyncIterator[Limiter]:
    async with Limiter(PoolPlaces(client, settings.namespace), who="run-n1-0", low=1, high=4) as limiter:
        yield limiter


async def until_held(limiter: Limiter, count: int) -> None:
    def held() -> bool:
        standing = limiter.standing(RUN)
        return standing is not None and standing.held == count

    await wait_until(held, f"{count} jobs are held")


async def test_a_held_job_waits_for_a_place_and_its_time_stands_still(limiter: Limiter) -> None:
    now_s = 0.0
    active = ActiveTime(100.0, monotonic=lambda: now_s)
    with limiter.job(RUN, "", "old", group="", since=1) as old, limiter.job(RUN, "", "young", group="", since=2) as young:
        pressed_to(limiter, 1, of=4)
        first, second = Calling(old), Calling(young)
        ends = [first.start()]
        await first.called.wait()
        ends.append(second.start(waiting=active.waiting))
        await until_held(limiter, 1)
        now_s = 60.0

        assert active.left_s == 100.0
        assert second.promised[0] == HELD_PROGRESS_S
        first.answer.set()
        await ends[0]
        assert not second.called.is_set(), "a place is a job's until it ends"
        limiter.leave(old)

        await second.called.wait()
        assert active.left_s == 100.0
        second.answer.set()
        await ends[1]


async def test_a_held_job_that_is_cancelled_leaves_at_once_and_takes_no_place(limiter: Limiter) -> None:
    with (
        limiter.job(RUN, "", "acts", group="", since=1) as acts,
        limiter.job(RUN, "", "cancelled", group="", since=2) as cancelled,
        limiter.job(RUN, "", "waits", group="", since=3) as waits,
    ):
        pressed_to(limiter, 1, of=4)
        first, second, third = Calling(acts), Calling(cancelled), Calling(waits)
        first.answer.set()
        await first.start()
        interrupted, other = second.start(), third.start()
        await until_held(limiter, 2)

        interrupted.cancel()

        with pytest.raises(asyncio.CancelledError):
            await interrupted
        await until_held(limiter, 1)
        limiter.leave(acts)
        await third.called.wait()
        third.answer.set()
        await other
        assert not second.called.is_set()


async def test_a_held_job_passes_the_gate_again_and_again(limiter: Limiter) -> None:
    """Contact with Redis may be lost while it waits, and nobody cancels its task then."""
    is_shut = False

    def gate() -> None:
        if is_shut:
            raise JobCancelled("run1.e0-i0.0", "user")

    with limiter.job(RUN, "", "acts", group="", since=1) as acts, limiter.job(RUN, "", "waits", group="", since=2) as waits:
        pressed_to(limiter, 1, of=4)
        first, second = Calling(acts), Calling(waits)
        first.answer.set()
        await first.start()
        waiting = second.start(gate=gate)
        await until_held(limiter, 1)

        is_shut = True

        with pytest.raises(JobCancelled):
            await waiting
        await until_held(limiter, 0)


async def test_jobs_are_allowed_for_what_each_run_has_room(limiter: Limiter) -> None:
    assert limiter.allowed_jobs() == 4, "nothing is known yet"
    with limiter.job(RUN, "", "a", group="", since=1), limiter.job(RUN, "", "b", group="", since=2):
        assert limiter.allowed_jobs() == 4
        pressed_to(limiter, 1, of=4)
        assert limiter.allowed_jobs() == 2, "those that are here, and none more"
        with limiter.job("run2", "", "c", group="", since=3):
            assert limiter.allowed_jobs() == 6, "the other run has room for three"
    assert limiter.allowed_jobs() == 5


async def test_a_run_that_is_new_here_gets_in_where_another_has_no_room(client: AsyncClient, settings: QueueSettings) -> None:
    """One run's server carried two jobs of the 32 that had begun: until thirty of them had ended nothing more was claimed, and the server
    of a second run idled beside free slots."""
    now_s = 0.0
    async with Limiter(PoolPlaces(client, settings.namespace), who="w", low=1, high=8, monotonic=lambda: now_s, period_s=3600) as limiter:
        with ExitStack() as jobs:
            for number in range(4):
                jobs.enter_context(limiter.job(RUN, "", f"j{number}", group="", since=number))
            pressed_to(limiter, 2, of=8)
            assert limiter.allowed_jobs() == 4
            now_s += STRANGER_S

            assert limiter.allowed_jobs() == 5, "one may be another's"
            jobs.enter_context(limiter.job(RUN, "", "j4", group="", since=4))
            assert limiter.allowed_jobs() == 5, "it was not"
            now_s += STRANGER_S
            assert limiter.allowed_jobs() == 6
            jobs.enter_context(limiter.job("run2", "", "first", group="", since=5))

            assert limiter.allowed_jobs() == 6 + 7, "its run has room for all"


async def test_more_room_is_told(client: AsyncClient, settings: QueueSettings) -> None:
    """Else a worker that waits for a free slot hears of it a second later, at each place that is added."""
    now_s, told = 0.0, list[int]()
    async with Limiter(PoolPlaces(client, settings.namespace), who="w", low=1, high=4, monotonic=lambda: now_s) as limiter:
        limiter.on_room = lambda: told.append(limiter.allowed_jobs())
        with limiter.job(RUN, "", "a", group="", since=1) as place:
            call = Calling(place)
            task = call.start()
            await call.called.wait()
            pressed_to(limiter, 1, of=4)
            assert told == []
            now_s = 100.0

            for _ in range(10):
                limiter.take_look(RUN, "", queue_at(1, 0))

            assert told == [2]
            call.answer.set()
            await task


async def test_processes_say_their_limits_and_hear_the_sums(client: AsyncClient, settings: QueueSettings) -> None:
    pool = PoolPlaces(client, settings.namespace)

    await pool.say(RUN, "", "run-n1-0", PlacesOf(limit=10, bound=32, acting=9, held=1))
    await pool.say(RUN, "judge", "run-n1-0", PlacesOf(limit=7, bound=32, acting=0, held=0))
    await pool.say("run2", "", "run-n1-0", PlacesOf(limit=5, bound=32, acting=0, held=0))
    heard = await pool.say(RUN, "", "run-n2-0", PlacesOf(limit=4, bound=8, acting=4, held=0))

    assert heard == RunLoad(False, 14, 40, ())
    await pool.leave(RUN, "", "run-n1-0")
    assert (await pool.say(RUN, "", "run-n2-0", PlacesOf(limit=4, bound=8, acting=4, held=0))).limits == 4


async def test_what_a_process_said_that_died_lapses(client: AsyncClient, settings: QueueSettings) -> None:
    """It does not leave, and its key lives on by what others say."""
    pool, keys = PoolPlaces(client, settings.namespace), Keys.of_pool(settings.namespace)
    await pool.say(RUN, "", "dead", PlacesOf(limit=10, bound=32, acting=9, held=1), stands_ms=1)

    async def lapsed() -> bool:
        return (await pool.say(RUN, "", "lives", PlacesOf(limit=4, bound=8, acting=4, held=0))).limits == 4

    await wait_until(lapsed, "what it said counts no more")
    assert [name async for name in client.scan_iter(match=keys.pool_places(RUN).replace("{", "[{]"))] == [keys.pool_places(RUN).encode()]
    assert await ask(client, "HKEYS", keys.pool_places(RUN)) == [b"lives "]


async def test_people_see_who_allows_what(limiter: Limiter, client: AsyncClient, settings: QueueSettings) -> None:
    keys = Keys.of_pool(settings.namespace)
    with limiter.job(RUN, "", "a", group="", since=1):

        async def is_said() -> bool:
            seconds, _ = await ask(client, "TIME")
            return await read_places(client, keys, RUN, int(seconds) * 1000) == {"run-n1-0 ": PlacesOf(limit=4, bound=4, acting=0, held=0)}

        await wait_until(is_said, "its limit is said at the first look")
        await limiter.__aexit__(None, None, None)

    assert await ask(client, "EXISTS", keys.pool_places(RUN)) == 0


async def test_a_run_that_is_over_is_forgotten(client: AsyncClient, settings: QueueSettings) -> None:
    """Else its room is counted for ever, and jobs of a run that has none are claimed for it."""
    now_s = 0.0
    keys, told = Keys.of_pool(settings.namespace), list[int]()
    places = PoolPlaces(client, settings.namespace)
    async with Limiter(places, who="w", low=1, high=4, monotonic=lambda: now_s, period_s=0.01) as limiter:
        limiter.on_room = lambda: told.append(limiter.allowed_jobs())
        with limiter.job(RUN, "", "a", group="", since=1):
            pressed_to(limiter, 1, of=4)
            now_s = 1000.0
        assert limiter.standing(RUN) is not None, "the next job may come soon"

        now_s += REMEMBERED_S + 1

        await wait_until(lambda: limiter.standing(RUN) is None, "it is forgotten")
        assert told == [4]

        async def is_unsaid() -> bool:
            return bool(await ask(client, "EXISTS", keys.pool_places(RUN)) == 0)

        await wait_until(is_unsaid, "and so is its limit")


async def test_a_server_whose_figures_are_none_is_no_news(limiter: Limiter, client: AsyncClient, settings: QueueSettings) -> None:
    """The task that looks ended, and with it every change of the limit."""
    keys, url = Keys.of_pool(settings.namespace), "http://127.0.0.1:9"
    await InferencePool(client, settings.namespace, lease_s=5).attach(RUN, [Server(url)])
    await ask(client, "HSET", keys.pool_server(RUN, url), "waiting", "many")
    with limiter.job(RUN, "", "a", group="", since=1):
        await wait_until(lambda: not limiter.hears(RUN), "a look has failed")

        await ask(client, "HSET", keys.pool_server(RUN, url), "waiting", "3")

        await wait_until(lambda: limiter.hears(RUN), "the next one is heard")


@pytest.mark.slow
async def test_without_redis_the_limit_holds_and_jobs_go_on(settings: QueueSettings, redis_server: PrivateServer) -> None:
    with LossyProxy(redis_server.socket) as proxy:
        client = command_client(settings.model_copy(update={"redis_url": proxy.url}))
        async with Limiter(PoolPlaces(client, settings.namespace), who="run-n1-0", low=1, high=4, period_s=0.05) as limiter:
            with limiter.job(RUN, "", "a", group="", since=1) as place:
                pressed_to(limiter, 2, of=4)
                proxy.begin_outage()
                call = Calling(place)
                call.answer.set()

                await call.start()

                standing = limiter.standing(RUN)
                assert standing is not None
                assert standing.limit == 2
            proxy.heal()
        await client.aclose()
