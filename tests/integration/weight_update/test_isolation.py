"""Two trainers with different runs and weights on one fleet never see each other's results, servers or pauses."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import wait_until
from tests.integration.weight_update.callers import Callers, all_turned, calling
from tests.integration.weight_update.engines import Engines, lies_in
from tests.integration.weight_update.loading import load, weights_of
from trainer_client import LimitsRequest, Run, SamplingRequest, ServersToLoad, Step, StepRequest, connect
from workers.llm.scripted import ServerOptions
from workers.llm.scripted.options import Latency

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(120)]
RUNS = ("red", "blue")
STEPS = 5
REQUEST = StepRequest(
    task="math",
    groups=2,
    n=2,
    ahead=1,
    policy="every",
    options={"tools": False},
    sampling=SamplingRequest(max_tokens=24),
    limits=LimitsRequest(max_turns=1),
)
ROWS = [{"question": f"What is {number} plus 1?", "answer": str(number + 1)} for number in range(60)]


@pytest.fixture
async def supervisor(settings: QueueSettings) -> AsyncIterator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Supervisor(settings, name="s1", period_s=0.2).run(stop), name="supervisor")
        yield
        stop.set()


class Trainer:
    """One of the two: it updates, or sends its engines away, at random between its steps."""

    def __init__(self, name: str, settings: QueueSettings, engines: Engines, seed: int) -> None:
        self.name = name
        self.urls = {engines.url(f"{name}-{letter}") for letter in "ab"}
        self.jobs: set[str] = set()
        self._rng = random.Random(f"{seed}/{name}")
        self._settings = settings
        self._engines = engines
        self._number = 0

    async def train(self) -> None:
        """All of its steps, each checked as it comes."""
        for url in sorted(self.urls):
            options = ServerOptions(latency=Latency(per_token_s=0.002, sigma=0.0))
            await self._engines.start(url.rpartition("/")[2], options)
        async with connect(self._settings, run=self.name) as run:
            await run.servers.attach(sorted(self.urls), control="trainer")
            await self._update(run)
            run.feed(ROWS, shuffle_seed=self._rng.randrange(2**31))
            async for step in run.steps(REQUEST, count=STEPS, timeout_s=60):
                await self._check(step)
                await self._act(run)
                await step.ack()
            assert {server.url for server in await run.servers.list()} == self.urls

    def weights_of(self, version: str) -> str:
        """Both count their versions alike: only what they load tells them apart."""
        return f"{self.name}/{version}"

    async def _update(self, run: Run) -> None:
        self._number += 1
        async with run.weight_update(self._number, mode=self._rng.choice(("keep", "abort", "wait"))) as servers:
            for server in servers:
                await load(server.url, self.weights_of(servers.version))
        assert not servers.failed

    async def _act(self, run: Run) -> None:
        match self._rng.randrange(4):
            case 0:
                await self._update(run)
            case 1:
                async with run.engines_away(mode=self._rng.choice(("abort", "wait")), weights_kept=True):
                    await asyncio.sleep(0)
            case 2:
                async with run.engines_away():
                    await self._update(run)
            case _:
                pass

    async def _check(self, step: Step) -> None:
        rollouts = await step.rollouts()
        assert len(rollouts) == REQUEST.groups * REQUEST.n
        for rollout in rollouts:
            assert rollout.run == self.name
            assert rollout.job.startswith(f"{self.name}.")
            assert {turn.server for turn in rollout.trajectory.turns} <= self.urls
            assert lies_in(rollout.trajectory, self.weights_of) == []
            self.jobs.add(rollout.job)


@pytest.mark.parametrize("seed", [0])
async def test_each_trainer_gets_what_its_own_weights_sampled(
    settings: QueueSettings, client: AsyncClient, engines: Engines, workers: None, supervisor: None, seed: int
) -> None:
    trainers = [Trainer(name, settings, engines, seed) for name in RUNS]

    await asyncio.gather(*(trainer.train() for trainer in trainers))

    assert [len(trainer.jobs) for trainer in trainers] == [STEPS * REQUEST.groups * REQUEST.n] * 2
    keys = Keys.of_shard(settings.namespace, 0)
    for name in RUNS:
        for _, flat in await ask(client, "XRANGE", keys.results(name), "-", "+"):
            fields = dict(zip(flat[::2], flat[1::2], strict=True)) if isinstance(flat, list) else flat
            assert fields[b"run"].decode() == name


Pause = Callable[[Run], AbstractAsyncContextManager[object]]


@pytest.mark.parametrize(
    "pause",
    [
        pytest.param(lambda run: run.engines_away(weights_kept=True), id="away"),
        *(pytest.param(lambda run, mode=mode: run.weight_update(2, mode=mode), id=mode) for mode in ("keep", "abort", "wait")),
    ],
)
async def test_a_pause_holds_its_own_run_and_no_other(settings: QueueSettings, client: AsyncClient, engines: Engines, pause: Pause) -> None:
    """One worker process serves both. Counted by calls: while one stands, each job of the other begins and ends three more."""
    options = ServerOptions(latency=Latency(per_token_s=0.002, sigma=0.0))
    async with connect(settings, run="red") as red, connect(settings, run="blue") as blue, calling(settings, client, "red") as mine:
        theirs = Callers(mine.servers, "blue")
        try:
            for run, crew in ((red, mine), (blue, theirs)):
                await run.servers.attach(await engines.start(run.id, options), control="trainer")
                async with run.weight_update(1) as servers:
                    await load(servers[0].url, weights_of(servers.version))
                crew.start(4)
            await wait_until(lambda: all_turned(mine, 0)() and min([*mine.turns.values(), *theirs.turns.values()]) > 0, "both call")

            async with pause(red) as paused:
                begun, sampled = len(engines["red"].requests), engines["red"].engine.generation_tokens
                await wait_until(all_turned(theirs, 3), "the other goes on", timeout_s=30)
                assert (len(engines["red"].requests), engines["red"].engine.generation_tokens) == (begun, sampled)
                for server in paused if isinstance(paused, ServersToLoad) else ():  # of an update; nothing of an absence
                    await load(server.url, weights_of("1.2"))

            await wait_until(all_turned(mine, 1), "and so does the one that stood", timeout_s=30)
            mine.check()
            theirs.check()
        finally:
            await theirs.leave()
