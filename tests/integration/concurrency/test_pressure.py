"""Workers in front of a model server that carries fewer jobs than they have: real workers, a real server that queues, a real keeper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pipeline.inference_pool import InferencePool, PlacesOf, Server, read_places
from pipeline.keys import Keys
from pipeline.messages import Sampling, Stage, Trajectory
from pipeline.redis_client import ask
from pipeline.testing import a_template, a_trajectory, wait_until
from tests.integration.stages.fleet import RUN, TASK, Fleet, Play
from workers.handlers.base import RunContext
from workers.llm.backend import GenRequest
from workers.llm.scripted import Latency, ScriptedServer, ServerOptions

pytestmark = [pytest.mark.one_server, pytest.mark.slow]


def plays(calls: int, tokens: int) -> Callable[[RunContext], Awaitable[Trajectory]]:
    """An agent that makes so many calls."""

    async def on_run(context: RunContext) -> Trajectory:
        for number in range(calls):
            request = GenRequest(
                request_id=f"{context.spec.job}.{context.spec.attempt}.{number}",
                prompt_ids=[5, 6, 7],
                sampling=Sampling(),
                max_tokens=tokens,
                seed=1,
                extra_args={"script": [9] * tokens},
            )
            await context.backend.generate(request, timeout_s=60)
        return a_trajectory()

    return on_run


@asynccontextmanager
async def a_server(fleet: Fleet, *, places: int, per_token_s: float) -> AsyncIterator[ScriptedServer]:
    """A server of the run with so many places; what it has no place for stands in line."""
    options = ServerOptions(max_running=places, latency=Latency(per_token_s=per_token_s, first_token_s=per_token_s, sigma=0.0))
    with TemporaryDirectory(prefix="rsc-") as folder:
        async with ScriptedServer(options, socket_path=Path(folder) / "llm") as server:
            pool = InferencePool(fleet.client, fleet.settings.namespace, lease_s=fleet.settings.lease_s)
            await pool.attach(RUN, [Server(server.url)])
            yield server


def calls_at(server: ScriptedServer) -> int:
    return server.engine.n_running + server.engine.n_waiting


async def places_of(fleet: Fleet) -> PlacesOf:
    """What the one RUN worker says."""
    seconds, _ = await ask(fleet.client, "TIME")
    said = await read_places(fleet.client, Keys.of_pool(fleet.settings.namespace), RUN, int(seconds) * 1000)
    return next(iter(said.values()), PlacesOf(limit=0, bound=0, acting=0, held=0))


async def until_held(fleet: Fleet, *, limit: int) -> None:
    """Until the limit has fallen so low and jobs are held."""

    async def held() -> bool:
        said = await places_of(fleet)
        return 0 < said.limit <= limit and said.held > 0

    await wait_until(held, f"the limit is {limit} at most", timeout_s=20)


@pytest.mark.timeout(90)
async def test_sixty_four_jobs_settle_near_the_eight_places_of_their_server(fleet: Fleet) -> None:
    jobs = await fleet.add(*(f"p{number}" for number in range(64)))
    async with a_server(fleet, places=8, per_token_s=0.02) as server:
        play = Play(on_run=plays(calls=8, tokens=10))
        fleet.start(Stage.INIT, Stage.EVAL, play=play, slots=64)
        fleet.start(Stage.RUN, play=play, slots=64)
        await wait_until(lambda: calls_at(server) > 32, "far more than it has places for")

        await wait_until(lambda: 0 < calls_at(server) <= 12, "about as many as it has places for", timeout_s=30)
        said = await places_of(fleet)
        results = await fleet.results(64, timeout_s=60)

    assert 6 <= said.limit <= 16
    assert {record["out"] for record in results.values()} == {"ok"}
    assert set(results) == set(jobs)
    assert {record["att"] for record in results.values()} == {"3"}, "one for each stage"
    assert {(await fleet.audit.job(job)).get("failed", "0") for job in jobs} == {"0"}


@pytest.mark.timeout(60)
async def test_with_the_switch_off_all_go_at_once_and_stay(fleet: Fleet) -> None:
    await fleet.add(*(f"p{number}" for number in range(64)))
    async with a_server(fleet, places=8, per_token_s=0.02) as server:
        play = Play(on_run=plays(calls=2, tokens=10))
        fleet.start(Stage.INIT, Stage.EVAL, play=play, slots=64)
        fleet.start(Stage.RUN, play=play, slots=64, adaptive=False)

        await wait_until(lambda: calls_at(server) == 64, "all of them")
        results = await fleet.results(64, timeout_s=30)

    assert {record["out"] for record in results.values()} == {"ok"}
    assert (await places_of(fleet)).limit == 0, "nobody says a limit"


@pytest.mark.timeout(60)
async def test_a_held_job_that_is_cancelled_or_out_of_time_is_settled_while_the_others_go_on(fleet: Fleet) -> None:
    hurried = a_template(task=TASK, wall_s=8.0)
    async with a_server(fleet, places=1, per_token_s=0.05) as server:
        play = Play(on_run=plays(calls=60, tokens=10))
        fleet.start(Stage.INIT, Stage.EVAL, play=play, slots=8)
        fleet.start(Stage.RUN, play=play, slots=8)
        await fleet.add("first")
        await wait_until(lambda: calls_at(server) == 1, "the oldest one calls")
        late = await fleet.add(*(f"late{number}" for number in range(3)), template=hurried)
        others = await fleet.add(*(f"p{number}" for number in range(4)))
        await until_held(fleet, limit=2)

        await fleet.scripts.cancel("job", others, "user")

        results = await fleet.results(4, timeout_s=3)
        assert {results[job]["out"] for job in others} == {"cancelled"}
        results = await fleet.results(7, timeout_s=20)
        assert {results[job]["out"] for job in late} == {"expired"}
        assert calls_at(server) == 1


@pytest.mark.timeout(60)
async def test_a_worker_that_leaves_hands_back_what_it_held_uncounted(fleet: Fleet) -> None:
    jobs = await fleet.add(*(f"p{number}" for number in range(8)))
    async with a_server(fleet, places=1, per_token_s=0.02) as server:
        slow, quick = Play(on_run=plays(calls=60, tokens=10)), Play()
        fleet.start(Stage.INIT, Stage.EVAL, play=slow, slots=8)
        (leaving,) = fleet.start(Stage.RUN, play=slow, slots=8, grace_s=0.5)
        await until_held(fleet, limit=2)

        leaving.stop.set()
        _, gone = fleet.workers.pop()
        async with asyncio.timeout(10):
            assert await gone == 0
        assert calls_at(server) == 0

        fleet.start(Stage.RUN, play=quick, node="n1", slots=8)
        results = await fleet.results(8, timeout_s=20)

    assert {record["out"] for record in results.values()} == {"ok"}
    assert {(job.get("failed", "0"), job.get("lost", "0")) for job in [await fleet.audit.job(job) for job in jobs]} == {("0", "0")}
