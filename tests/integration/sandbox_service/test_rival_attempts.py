"""Two attempts of a job that start at once, as after a claim that was doubled: the higher one gets a sandbox, the lower one keeps none.

The steps of a start are a look for other attempts, its folder, a second look, and its walls; each is stopped here, in both orders.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pipeline.testing.wait import wait_until
from tests.integration.sandbox_life.nodes import an_owner, left, settings
from tests.integration.sandbox_service.nodes import WITH_IMAGE, Gate, GatedProvider, node_of
from workers.sandbox import Sandbox, SandboxGone, SandboxHandle, SandboxStartError, StaleAttempt
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.local.attempts import POOL_JOB
from workers.sandbox.local.folder import SandboxFolder, sandbox_paths
from workers.sandbox.service import RemoteSandboxes, serving_here

JOB = "job"


class Attempts:
    """Starts of the attempts of one job, each stopped at its own gates."""

    def __init__(self, place: Path, stack: AsyncExitStack, *, through: str) -> None:
        self.place = place
        self._stack = stack
        self._through = through
        self._gates = PerAttempt()
        self._service: RemoteSandboxes | None = None

    async def start(self, attempt: int, *, at_image: Gate | None = None, at_command: Gate | None = None) -> asyncio.Task[Sandbox]:
        """Begins one, and returns when it stands at its gate."""
        image, command = at_image or Gate(is_open=True), at_command or Gate(is_open=True)
        if self._through == "one service":
            provider: LocalSandboxes | RemoteSandboxes = await self._served()
            self._gates.next(image, command)
        else:
            provider = node_of(self.place, GatedProvider(at_image=image, at_command=command))
            await self._stack.enter_async_context(provider)
        starting: asyncio.Task[Sandbox] = asyncio.ensure_future(self._start(provider, attempt))
        stop = at_image or at_command
        if stop is not None:
            await wait_until(lambda: stop.arrived or starting.done(), f"attempt {attempt} stands at its gate")
        return starting

    async def _start(self, provider: LocalSandboxes | RemoteSandboxes, attempt: int) -> Sandbox:
        return await provider.start(WITH_IMAGE, an_owner(JOB, attempt=attempt))

    async def _served(self) -> RemoteSandboxes:
        if self._service is None:
            place = self.place
            await self._stack.enter_async_context(serving_here(node_of(place, self._gates), place / "run", settings=settings(starts=4)))
            self._service = await self._stack.enter_async_context(RemoteSandboxes(place / "run"))
        return self._service

    def folders(self) -> list[int]:
        """Attempts that made what is there now."""
        return [SandboxFolder.open(path).record.attempt for path in sandbox_paths(self.place / "scratch")]


class PerAttempt(GatedProvider):
    """One provider for several starts: who comes next is stopped at the gates that were named last."""

    def next(self, image: Gate, command: Gate) -> None:
        self.at_image = image
        self.at_command = command


@pytest.fixture(params=["one service", "two providers"])
async def attempts(request: pytest.FixtureRequest, place: Path) -> AsyncIterator[Attempts]:
    async with AsyncExitStack() as stack:
        yield Attempts(place, stack, through=request.param)
    assert left(place) == []


async def has_lost(starting: asyncio.Task[Sandbox]) -> None:
    """Told so, or given a sandbox that has ended."""
    try:
        sandbox = await starting
    except (StaleAttempt, SandboxStartError):
        return
    async with asyncio.timeout(10):
        await sandbox.wait_gone()
    with pytest.raises(SandboxGone):
        await sandbox.list()


async def has_won(starting: asyncio.Task[Sandbox], attempts: Attempts, attempt: int) -> None:
    sandbox = await starting
    await wait_until(lambda: attempts.folders() == [attempt], f"attempt {attempt} alone is there")
    assert (await sandbox.exec("echo alone", timeout_s=10)).stdout == b"alone\n"
    await sandbox.stop()


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
async def test_both_have_looked_before_either_has_a_folder(attempts: Attempts, first: int, second: int) -> None:
    """Each had found nobody, and both lived: two workers in two sandboxes of one job, until one of them felt its lost lease."""
    gates = {1: Gate(), 2: Gate()}
    starting = {attempt: await attempts.start(attempt, at_image=gates[attempt]) for attempt in (first, second)}

    gates[first].open()
    await asyncio.wait((starting[first],))
    gates[second].open()

    if first == 2:
        with pytest.raises(StaleAttempt):
            await starting[1]
    else:
        await has_lost(starting[1])
    await has_won(starting[2], attempts, 2)


@pytest.mark.parametrize("opened_first", [1, 2])
async def test_both_have_a_folder_before_either_stands(attempts: Attempts, opened_first: int) -> None:
    gates = {1: Gate(), 2: Gate()}
    lower = await attempts.start(1, at_command=gates[1])
    higher = await attempts.start(2, at_command=gates[2])

    gates[opened_first].open()
    await asyncio.wait((lower if opened_first == 1 else higher,))
    gates[3 - opened_first].open()

    await has_lost(lower)
    await has_won(higher, attempts, 2)


async def test_the_lower_one_comes_when_the_higher_one_is_on_its_way(attempts: Attempts) -> None:
    gate = Gate()
    higher = await attempts.start(2, at_command=gate)

    lower = await attempts.start(1)

    with pytest.raises(StaleAttempt):
        await lower
    gate.open()
    await has_won(higher, attempts, 2)


async def test_all_at_once(attempts: Attempts) -> None:
    """Without steps: whatever the order, the highest is what is left."""
    gate = Gate()
    starting = {attempt: await attempts.start(attempt, at_image=gate) for attempt in (3, 1, 4, 2)}

    gate.open()
    await asyncio.wait(starting.values())

    for attempt in (1, 2, 3):
        await has_lost(starting[attempt])
    await has_won(starting[4], attempts, 4)


async def test_a_sandbox_of_the_pool_that_is_handed_out_meets_its_rivals_too(place: Path) -> None:
    """It belongs to the pool while the other start looks, and to the job a moment later."""
    gate = Gate()
    pool, other = node_of(place, GatedProvider()), node_of(place, GatedProvider(at_image=gate))
    async with pool, other:
        spare = await pool.start(WITH_IMAGE, an_owner(POOL_JOB))
        higher: asyncio.Task[Sandbox] = asyncio.ensure_future(other.start(WITH_IMAGE, an_owner(JOB, attempt=2)))
        await gate.reached()
        await pool.hand_over(spare, an_owner(JOB, attempt=1))
        gate.open()

        sandbox = await higher

        await spare.wait_gone()
        assert (await sandbox.exec("echo alone", timeout_s=10)).stdout == b"alone\n"
        await sandbox.stop()


async def test_an_attach_and_a_new_start_never_both_have_it(place: Path) -> None:
    """The look of a start and the end of what it found were two steps: an attach of a later attempt in between lost its sandbox to it."""
    provider = node_of(place, GatedProvider())
    async with provider:
        handle: SandboxHandle = await (await provider.start(WITH_IMAGE, an_owner(JOB, attempt=1))).park()
        later = await provider.attach(handle, an_owner(JOB, attempt=3))

        with pytest.raises(StaleAttempt):
            SandboxFolder.open(Path(handle.folder)).fence_off(2)

        assert (await later.exec("echo alive", timeout_s=10)).stdout == b"alive\n"
        await later.stop()
