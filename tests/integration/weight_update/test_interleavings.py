"""Random histories of updates, absences, restarts and takeovers, over two runs whose calls go on: each token's version is true (ADR 13)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from pipeline.errors import RollstreamError
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.weight_update.callers import Callers, all_turned, calling
from tests.integration.weight_update.engines import Engines
from tests.integration.weight_update.loading import load, weights_of
from trainer_client import Run, connect
from trainer_client.weight_update import MODES
from workers.llm.scripted import Fault, ServerOptions
from workers.llm.scripted.options import Latency, WireVersion

pytestmark = [pytest.mark.one_server, pytest.mark.timeout(180)]
TOKEN_S = 0.002
STEPS = 14
ACTIONS = (
    "update",
    "update",
    "breaks",
    "restarts",
    "restarts at label",
    "inside",
    "kept",
    "restart",
    "down",
    "successor",
    "old trainer wakes",
)
WIRES: tuple[WireVersion, ...] = ("0.32", "sglang-0.5.10", "sglang-0.5")


class BlockBroke(Exception):
    """What the block of an update raises here."""


class Story:
    """One run with its servers and its trainers, one after the other."""

    def __init__(self, name: str, settings: QueueSettings, engines: Engines, seed: int) -> None:
        self.name = name
        self.rng = random.Random(f"{seed}/{name}")
        self.told: list[str] = []
        self._settings = settings
        self._engines = engines
        self._servers = [f"{name}-{letter}" for letter in "abc"]
        self._stack = AsyncExitStack()
        self._run: Run | None = None
        self._number = 0
        self._down: set[str] = set()

    @property
    def run(self) -> Run:
        assert self._run is not None
        return self._run

    async def begin(self) -> None:
        for server in self._servers:
            await self._start(server)
        await self.succeed()
        await self.update()

    async def _start(self, server: str) -> None:
        """Each of the three speaks another wire: what a server says of itself decides what proves its weights."""
        wire = WIRES[self._servers.index(server)]
        await self._engines.start(server, ServerOptions(wire=wire, latency=Latency(per_token_s=TOKEN_S, sigma=0.0)))

    async def succeed(self) -> None:
        """Another trainer takes the run over; the one before is there still."""
        self._run = await self._stack.enter_async_context(connect(self._settings, run=self.name))
        self._number = 0
        await self.run.servers.attach([self._engines.url(server) for server in self._servers], control="trainer")

    async def update(
        self, *, breaks_after: int = -1, restarts: bool = False, restarts_at_label: bool = False, inside: bool = False
    ) -> None:
        mode = self.rng.choice(MODES)
        self._number += 1
        async with AsyncExitStack() as stack:
            if inside:
                await stack.enter_async_context(self.run.engines_away())
            async with self.run.weight_update(self._number, mode=mode) as servers:
                for loaded, server in enumerate(servers):
                    if loaded == breaks_after:
                        raise BlockBroke
                    await load(server.url, weights_of(servers.version))
                if breaks_after >= len(servers):
                    raise BlockBroke
                if restarts:
                    self._restart()
                if restarts_at_label:
                    self._engines[self._one_that_is_there()].faults.arm(Fault(kind="restart", path="/update_weight_version"))

    def _one_that_is_there(self) -> str:
        return self.rng.choice([name for name in self._servers if name not in self._down])

    def _restart(self) -> None:
        name = self._one_that_is_there()
        self.told.append(f"restart of {name}")
        self._engines[name].restart()

    async def act(self) -> None:
        """One step of the story. An update may fail in it: all of its servers restarted, say."""
        action = self.rng.choice(ACTIONS)
        self.told.append(action)
        try:
            match action:
                case "update":
                    await self.update()
                case "breaks":
                    await self.update(breaks_after=self.rng.randrange(4))
                case "restarts":
                    await self.update(restarts=True)
                case "restarts at label":
                    await self.update(restarts_at_label=True)
                case "inside":
                    await self.update(inside=True)
                case "kept":
                    async with self.run.engines_away(mode="wait", weights_kept=True):
                        pass
                case "restart":
                    self._restart()
                case "down":
                    await self._down_and_up()
                case "successor":
                    await self.succeed()
                case _:
                    await self._wakes()
        except (BlockBroke, RollstreamError) as error:
            self.told.append(f"-> {type(error).__name__}")
            if action not in ("breaks", "restarts", "restarts at label", "old trainer wakes"):
                raise

    async def _down_and_up(self) -> None:
        """A server goes, or comes back with what it holds at its start."""
        if self._down:
            name = self._down.pop()
            await self._start(name)
        else:
            name = self.rng.choice(self._servers[1:])
            self._down.add(name)
            await self._engines.die(name)

    async def _wakes(self) -> None:
        """A trainer hung in its block; its successor updated; now it goes on."""
        older = self.run.weight_update(self._number + 1)
        servers = await older.__aenter__()
        for server in servers:
            await load(server.url, f"of the older trainer {self.rng.random()}")
        await self.succeed()
        await self.update()
        assert not await older.__aexit__(None, None, None), "it must not end well"
        raise AssertionError("the older trainer labelled what is not its own any more")

    async def end(self) -> None:
        """All servers are there, and get weights once more."""
        while self._down:
            await self._down_and_up()
        await self.update()

    async def leave(self) -> None:
        await self._stack.aclose()


@pytest.fixture
async def stories(settings: QueueSettings, engines: Engines, seed: int) -> AsyncIterator[list[Story]]:
    stories = [Story(name, settings, engines, seed) for name in ("run1", "run2")]
    yield stories
    for story in stories:
        await story.leave()


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=() if seed == 0 else pytest.mark.slow) for seed in range(6)])
async def test_no_token_bears_a_wrong_version_whatever_happens(stories: list[Story], settings: QueueSettings, client: AsyncClient) -> None:
    async with AsyncExitStack() as stack:
        crews: list[Callers] = []
        for story in stories:
            await story.begin()
            crew = await stack.enter_async_context(calling(settings, client, story.name))
            crew.start(5)
            crews.append(crew)

        async def play(story: Story) -> None:
            for _ in range(STEPS):
                await story.act()
                await asyncio.sleep(0)  # the calls of both runs go on in between

        try:
            await asyncio.gather(*map(play, stories))
            for story, crew in zip(stories, crews, strict=True):
                await story.end()
                await wait_until(all_turned(crew, 2), "all jobs go on", timeout_s=30)
                crew.check()
                last = f"{story.run.incarnation}.{story.run.policy_version.split('.')[1]}"
                assert last in crew.versions
        except BaseException:
            for story in stories:
                print(story.name, story.told)
            raise
