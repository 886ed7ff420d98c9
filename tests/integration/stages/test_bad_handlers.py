"""Handlers are anybody's code. Whatever one raises or returns ends its own job, as a failure that says what it was, and never as a
reward."""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from pipeline.errors import BrokerMisused
from pipeline.messages import Grade, Limits, Trajectory
from pipeline.testing import a_segment, a_template, a_trajectory, a_turn
from tests.integration.stages.fleet import TASK, Fleet, Play, a_delta
from workers.handlers.base import Environment, EvalContext, RunContext, StageContext
from workers.sandbox.errors import SandboxStartError

pytestmark = pytest.mark.one_server

Part = Callable[[Any], Awaitable[Any]]
"""Of whatever context, to whatever a handler of no care returns."""


def raising(error: BaseException) -> Part:
    async def part(context: StageContext) -> None:
        raise error

    return part


def returning(value: object) -> Part:
    async def part(context: StageContext) -> object:
        return value

    return part


async def cancels_itself(context: StageContext) -> None:
    """A bug of a handler: it waits for a task that it has cancelled."""
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


async def fails_in_a_group(context: StageContext) -> None:
    async def fails() -> None:
        raise SandboxStartError("process", "the disk is full")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fails())


async def exits(context: StageContext) -> None:
    sys.exit("no more")


BAD_PARTS: dict[str, tuple[Part, str]] = {
    "raises": (raising(ZeroDivisionError("division by zero")), "handler: ZeroDivisionError: division by zero"),
    "raises a group": (fails_in_a_group, "sandbox: SandboxStartError: sandbox (process) not started: the disk is full"),
    "exits": (exits, "handler: HandlerExited"),
    "cancels itself": (cancels_itself, "CancelledError"),
    "times out inside": (raising(TimeoutError("slow")), "stage: TimeoutError: slow"),
    "meets a key of another type": (raising(BrokerMisused("WRONGTYPE Operation")), "broker: BrokerMisused: WRONGTYPE"),
    "returns nothing": (returning(None), "handler: "),
    "returns something else": (returning("a text"), "handler: "),
}


@pytest.mark.parametrize("stage", ["init", "run", "evaluate"])
async def test_a_part_that_misbehaves_is_retried_and_then_a_dead_letter(fleet: Fleet, stage: str) -> None:
    """Promise 7. `exits` ended the worker with all it held; `cancels itself` and a key of another type were handed back
    uncounted, again and again, for ever."""
    kinds = list(BAD_PARTS)

    async def by_job(context: StageContext) -> object:
        return await BAD_PARTS[kinds[int(context.spec.prompt.id)]][0](context)

    jobs = await fleet.add(*map(str, range(len(kinds))), max_failed=1)
    play = Play()
    setattr(play, f"on_{stage}", by_job)
    fleet.start(play=play, slots=len(kinds))

    results = await fleet.results(len(jobs))

    for kind, job in zip(kinds, jobs, strict=True):
        assert (results[job]["out"], results[job]["rew"], (await fleet.audit.job(job))["failed"]) == ("infra_failure", "", "2"), kind
        assert BAD_PARTS[kind][1] in results[job]["why"], kind
    assert await fleet.audit.all_ended("run1", fleet.units) == []


BAD_GRADES: dict[str, object] = {
    "NaN": Grade(reward=math.nan),
    "infinite": Grade(reward=math.inf),
    "NaN in a component": Grade(reward=1.0, components={"format": math.nan}),
    "a text": Grade(reward=cast(float, "1.0")),
    "none": Grade(reward=cast(float, None)),
    "details that cannot travel": Grade(reward=1.0, details={"file": object()}),
}


async def test_a_grade_that_is_none_is_never_a_reward(fleet: Fleet) -> None:
    kinds = list(BAD_GRADES)

    async def by_job(context: EvalContext) -> Grade:
        return cast(Grade, BAD_GRADES[kinds[int(context.spec.prompt.id)]])

    jobs = await fleet.add(*map(str, range(len(kinds))), max_failed=1)
    fleet.start(play=Play(on_evaluate=by_job), slots=len(kinds))

    results = await fleet.results(len(jobs))

    for kind, job in zip(kinds, jobs, strict=True):
        assert (results[job]["out"], results[job]["rew"], results[job]["comps"]) == ("infra_failure", "", ""), kind


async def test_a_doubtful_grade_is_asked_for_again(fleet: Fleet) -> None:
    asked: list[int] = []

    async def evaluate(context: EvalContext) -> Grade:
        asked.append(context.spec.attempt)
        return Grade(reward=math.nan if len(asked) == 1 else 0.5)

    (job,) = await fleet.add("job")
    fleet.start(play=Play(on_evaluate=evaluate))

    record = await fleet.result()

    assert (record["out"], record["rew"], len(asked)) == ("ok", "0.5", 2)
    assert (await fleet.audit.job(job))["failed"] == "1"


BAD_TRAJECTORIES: dict[str, Trajectory] = {
    "masks of another length": a_trajectory(segments=(a_segment(sampled_mask=a_segment(4).sampled_mask),)),
    "turns that stand nowhere": a_trajectory(segments=(), turns=(a_turn(),)),
    "a loss on what was not sampled": a_trajectory(segments=(a_segment(loss_mask=a_segment(8, 8).loss_mask),)),
}


async def test_a_trajectory_that_breaks_promise_6_is_not_handed_on(fleet: Fleet) -> None:
    kinds = list(BAD_TRAJECTORIES)

    async def by_job(context: RunContext) -> Trajectory:
        return BAD_TRAJECTORIES[kinds[int(context.spec.prompt.id)]]

    jobs = await fleet.add(*map(str, range(len(kinds))), max_failed=0)
    fleet.start(play=Play(on_run=by_job))

    results = await fleet.results(len(jobs))

    for kind, job in zip(kinds, jobs, strict=True):
        assert results[job]["out"] == "infra_failure", kind
        assert "InvalidTrajectory" in results[job]["why"], kind


@pytest.mark.slow
async def test_a_handler_that_blocks_the_loop_keeps_its_lease(fleet: Fleet) -> None:
    async def blocks(context: RunContext) -> Trajectory:
        until_s = time.monotonic() + 1.5 * fleet.settings.lease_s
        while time.monotonic() < until_s:
            sum(range(10_000))
        return a_trajectory()

    (job,) = await fleet.add("job")
    fleet.start(play=Play(on_run=blocks))

    record = await fleet.result(timeout_s=20)

    assert (record["out"], (await fleet.audit.job(job))["lost"]) == ("ok", "0")


async def test_a_part_that_overruns_its_limit_is_a_failure_of_the_stage(fleet: Fleet) -> None:
    async def hangs(context: StageContext) -> Environment:
        await asyncio.Event().wait()
        raise AssertionError

    await fleet.add("job", template=a_template(task=TASK, max_failed=0, limits=Limits(init_active_s=0.2)))
    fleet.start(play=Play(on_init=hangs))

    record = await fleet.result()

    assert (record["out"], record["why"]) == ("infra_failure", "stage: TimeoutError: TimeoutError")


@pytest.mark.slow
async def test_an_absurd_journal_hurts_only_its_own_job(fleet: Fleet) -> None:
    """A turn that is not the next one is what a lost attempt would send, so it is not kept; one whose number is none fails."""
    absurd = [-1, 7, 10**9, cast(int, "first"), cast(int, None)]

    async def run(context: RunContext) -> Trajectory:
        if context.spec.prompt.id != "other" and context.spec.attempt <= 2:
            await context.journal(a_delta(absurd[int(context.spec.prompt.id)]))
        return a_trajectory()

    jobs = await fleet.add(*map(str, range(len(absurd))), "other")
    fleet.start(play=Play(on_run=run), slots=8)

    results = await fleet.results(len(jobs), timeout_s=15)

    assert {results[job]["out"] for job in jobs} == {"ok"}
    assert await fleet.audit.all_ended("run1", fleet.units) == []
