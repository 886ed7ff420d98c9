"""Workers of every stage, the node's sandbox service and its launcher are killed while jobs run: every job ends, typed, and nothing of a
sandbox is left (`tests/sandbox_leftovers.py`).

`ROLLSTREAM_KILL_ROUNDS` says how often each is killed; once, where it is not set.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable

import pytest

from ops.sandbox_service import LINGER_S
from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.scripts import Unit
from pipeline.scripts.calls import new_nonce
from pipeline.testing import QueueAudit, wait_until
from pipeline.testing.wait import WaitedTooLong
from tests.contract.sandbox.kinds import KINDS, required
from tests.faults.math_fleet import RUN, MathFleet, math_fleet
from tests.sandbox_ground import apptainer_program
from tests.sandbox_leftovers import Leftovers

ROUNDS = int(os.environ.get("ROLLSTREAM_KILL_ROUNDS", "1"))
JOBS = 6
"""Of each round: enough that every stage has some when it is hit."""
JANITOR_S, AGENT_S = 1.0, 2.0
"""Between two looks of the janitor, and of a worker's node agent."""
LEFT_S = JANITOR_S + 5.0
"""Issue: five seconds after the janitor's next round."""
LEAVES_S = 10.0
"""Workers hand back what they hold when their launcher is gone, and their service leaves nothing: two to five seconds on a machine that
does other things too."""
GONE_S = 6.0
"""The design says one second after a cancel was published; the rest is for a machine that does other things too. The agent's next look at
all sandboxes, which needs no cancel, comes after thirty."""
TOLD_LINES = 25
"""Of each log."""
ANY_S = 0.5
"""The kill comes up to so long after jobs were seen to come through: in that time there are some at every moment of each stage."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + 200 * ROUNDS)]


def kinds(*few: str) -> pytest.MarkDecorator:
    """Of sandboxes: some where tests are to be quick, all where rounds are asked for."""
    return pytest.mark.parametrize("fleet", ("process", "bubblewrap", "apptainer") if ROUNDS > 1 else few, indirect=True)


@pytest.fixture
async def fleet(request: pytest.FixtureRequest) -> AsyncIterator[MathFleet]:
    """Without workers yet."""
    why = KINDS[request.param].why_not()
    if why:
        (pytest.fail if request.param in required() else pytest.skip)(f"{request.param}: {why}")
    runtime = apptainer_program()
    path = os.environ.get("PATH", os.defpath) + (f":{runtime.parent}" if runtime else "")
    variables = {"ROLLSTREAM_SANDBOX_BACKEND": request.param, "ROLLSTREAM_SANDBOX_JANITOR_S": str(JANITOR_S), "PATH": path}
    async with math_fleet((), **variables) as fleet:
        fleet.incarnation = await fleet.scripts.connect_run(RUN, nonce=new_nonce(), ttl_s=3600)
        yield fleet


async def results(fleet: MathFleet) -> int:
    return int(await ask(fleet.client, "XLEN", fleet.keys.results(RUN)))


async def told(fleet: MathFleet, units: list[Unit], waiting: Awaitable[None]) -> None:
    """Waits, and says of what did not come what the jobs and the processes say."""
    try:
        await waiting
    except WaitedTooLong as error:
        jobs = [f"{unit.id}: {await ask(fleet.client, 'HGETALL', fleet.keys.job(unit.id))}" for unit in units[-2 * JOBS :]]
        logs = sorted(
            [*(fleet.folder / "logs").glob("*.log"), *(fleet.folder / "state/logs").glob("*.log")], key=lambda log: log.stat().st_mtime
        )[-6:]
        said = [f"{log.name}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-TOLD_LINES:]) for log in logs]
        raise AssertionError("\n".join((str(error), *jobs, *said))) from None


async def until_busy(fleet: MathFleet, units: list[Unit]) -> None:
    """Adds jobs, and returns at any moment while they run."""
    ended = await results(fleet)
    units += await fleet.accept(len(units), JOBS)

    async def come_through() -> bool:
        fleet.children.check()  # a worker that ended by itself says why in its log
        return await results(fleet) > ended

    await told(fleet, units, wait_until(come_through, "jobs come through", timeout_s=90))
    await asyncio.sleep(random.uniform(0.0, ANY_S))  # what is tried is any moment, so this one is drawn


async def all_ended(fleet: MathFleet, units: list[Unit]) -> None:
    """Every job ended once, and none for a reason that is not the model's."""

    ended = await results(fleet)
    while ended < len(units):  # after many rounds a pile of them has waited for quiet: what counts is that they come
        before = ended

        async def goes_on() -> bool:
            nonlocal ended
            fleet.children.check()
            ended = await results(fleet)
            return ended > before  # noqa: B023  # awaited before the next turn of the loop

        await told(fleet, units, wait_until(goes_on, f"one more than {ended} of {len(units)} jobs ended", timeout_s=120))
    audit = QueueAudit(fleet.client, fleet.keys)
    assert await audit.all_ended(RUN, units) == []
    assert {record["out"] for record in await audit.results(RUN)} <= {"ok", "model_failure"}


async def nothing_is_left(look: Leftovers, after: str, *, timeout_s: float) -> None:
    left: list[str] = []

    def is_none() -> bool:
        left[:] = look.found()
        return not left

    try:
        await wait_until(is_none, "nothing is left", timeout_s=timeout_s)
    except WaitedTooLong:
        raise AssertionError(f"{timeout_s:g} s after {after} there is still:\n" + "\n".join(left)) from None


async def waits_for(fleet: MathFleet, unit: Unit, stage: Stage) -> bool:
    found = await ask(fleet.client, "HMGET", fleet.keys.job(unit.id), "st", "stage")
    return list(found) == [b"ready", stage.value.encode()]


def kill_service(fleet: MathFleet) -> None:
    """The process that has the lock of the run folder, unless it has just ended by itself; workers start the next one."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(int((fleet.folder / "run" / "sandbox.lock").read_text()), signal.SIGKILL)


@kinds("bubblewrap", "apptainer")
async def test_jobs_whose_workers_and_services_are_killed_all_end_and_leave_no_sandbox(fleet: MathFleet) -> None:
    units: list[Unit] = []
    look = Leftovers(fleet.folder, "scratch")
    with look.adopting():
        for stage in Stage:
            fleet.start(stage)
        for victim in (*Stage, None) * ROUNDS:
            await until_busy(fleet, units)
            if victim is None:
                kill_service(fleet)
            else:
                fleet.start(victim)  # kills the one before

        await all_ended(fleet, units)
        await wait_until(lambda: not fleet.of_sandboxes(), "no sandbox is left", timeout_s=LEFT_S)
        for stage in Stage:
            fleet.kill(fleet.workers[stage])
        await nothing_is_left(look, "the last worker was killed, with which its service goes", timeout_s=LINGER_S + LEFT_S)


@kinds("bubblewrap")
async def test_a_node_whose_launcher_is_killed_ends_and_its_jobs_go_on_with_the_next(fleet: MathFleet) -> None:
    """Everything that runs below it leaves with it, the service that it started too, which takes the folders along."""
    units: list[Unit] = []
    look = Leftovers(fleet.folder, "scratch")
    with look.adopting():
        for number in range(ROUNDS + 1):
            launcher = fleet.children.start(f"launcher{number}", "tests.faults.launcher_program", str(fleet.folder / "logs"))
            if number < ROUNDS:
                await until_busy(fleet, units)
            else:
                await all_ended(fleet, units)
                await wait_until(lambda: not fleet.of_sandboxes(), "no sandbox is left", timeout_s=LEFT_S)

            fleet.kill(launcher)

            await nothing_is_left(look, "the launcher was killed", timeout_s=LEAVES_S)


@kinds("process")
async def test_a_cancel_ends_a_sandbox_that_waits_for_run_though_its_worker_is_dead(fleet: MathFleet) -> None:
    """Nobody holds it: the worker that made it was killed, that of RUN stood still. Whoever is on the node hears of the cancel."""
    look = Leftovers(fleet.folder, "scratch")
    with look.adopting():
        for stage in (Stage.INIT, Stage.RUN):
            # the lease outlasts the test: a worker that lost its name would have the job made anew
            fleet.start(stage, ROLLSTREAM_LEASE_S="300")
        (first,) = await fleet.accept(0, 1)
        await wait_until(lambda: waits_for(fleet, first, Stage.EVAL), "the worker of RUN has had a job, so it hears cancels", timeout_s=90)
        await wait_until(lambda: not fleet.of_sandboxes(), "its sandbox is gone", timeout_s=LEFT_S)
        runs = fleet.workers[Stage.RUN].process
        runs.send_signal(signal.SIGSTOP)
        (unit,) = await fleet.accept(1, 1)
        await wait_until(lambda: waits_for(fleet, unit, Stage.RUN), "its sandbox is made", timeout_s=30)
        fleet.kill(fleet.workers[Stage.INIT])
        assert fleet.of_sandboxes() != []

        await fleet.scripts.cancel("job", [unit.id], "redundant")
        runs.send_signal(signal.SIGCONT)

        await wait_until(lambda: not fleet.of_sandboxes(), "its sandbox is gone", timeout_s=GONE_S)
        fleet.kill(fleet.workers[Stage.RUN])
        await nothing_is_left(look, "the last worker was killed", timeout_s=LINGER_S + LEFT_S)


@kinds("process")
async def test_a_worker_that_is_frozen_past_its_lease_has_lost_its_jobs_and_their_sandboxes(fleet: MathFleet) -> None:
    """Another one takes its jobs over, and their sandboxes are ended over its head; what it says when it goes on is refused."""
    units: list[Unit] = []
    look = Leftovers(fleet.folder, "scratch")
    with look.adopting():
        for stage in Stage:
            fleet.start(stage)
        for stage in (Stage.INIT, Stage.RUN) * ROUNDS if ROUNDS > 1 else (Stage.RUN,):
            await until_busy(fleet, units)
            frozen = fleet.workers.pop(stage)
            frozen.process.send_signal(signal.SIGSTOP)
            fleet.start(stage, 1)
            await all_ended(fleet, units)
            await wait_until(lambda: not fleet.of_sandboxes(), "no sandbox is left", timeout_s=LEFT_S + AGENT_S)

            frozen.process.send_signal(signal.SIGCONT)

            await until_busy(fleet, units)
            await all_ended(fleet, units)
            fleet.kill(frozen)
        for stage in Stage:
            fleet.kill(fleet.workers[stage])
        await nothing_is_left(look, "the last worker was killed", timeout_s=LINGER_S + LEFT_S)
