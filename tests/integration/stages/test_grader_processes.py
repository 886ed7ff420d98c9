"""Processes of a grader in a real EVAL worker: they end with the job they work for."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psutil
import pytest

from pipeline.codec import encode
from pipeline.messages import Prompt, Trajectory
from pipeline.scripts import Scripts
from pipeline.testing import a_trajectory, wait_until
from tests.integration.stages.fleet import Fleet, Play
from workers.graders import MathGrader
from workers.handlers.base import RunContext
from workers.handlers.math.handler import MathHandler

pytestmark = pytest.mark.one_server

POISON = r"\boxed{\sum_{k=1}^{99999999999} k^{99999}}"
"""Computer algebra does not come to an end with it."""
LONG_LIMIT_S = 600.0
"""So that what ends the process is the cancel and not its own limit."""


@pytest.fixture
async def grader() -> AsyncIterator[MathGrader]:
    async with MathGrader(processes=1, limit_s=LONG_LIMIT_S) as grader:
        await grader.warm()
        yield grader


async def poisons(context: RunContext) -> Trajectory:
    return a_trajectory(answer=POISON)


async def test_a_process_that_compares_ends_with_the_job_that_is_cancelled(fleet: Fleet, scripts: Scripts, grader: MathGrader) -> None:
    """Grader processes never outlive a cancelled job: nobody waits for what they compute, and each holds a core."""
    handler = MathHandler(grader)
    fleet.start(play=Play(on_run=poisons, on_evaluate=handler.evaluate))
    (job,) = await fleet.add("j", prompt_body=encode(Prompt(id="j", data={"question": "?", "answer": "1"})))
    await wait_until(lambda: grader.working, "a process compares", timeout_s=20)
    (pid,) = grader.working

    await scripts.cancel("job", [job], "user")

    await wait_until(lambda: not psutil.pid_exists(pid), "the process has ended", timeout_s=2)
    record = await fleet.result()
    assert (record["out"], record["why"]) == ("cancelled", "user")
