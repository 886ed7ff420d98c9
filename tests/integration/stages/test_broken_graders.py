"""A grader that breaks on an answer: whose doing that is, is found out by the gold answer, after one retry (design, section 6; promise 7).

Real workers of all stages; the graders are small ones that break in the way the test says.
"""

from __future__ import annotations

import asyncio
import io
import math
from collections.abc import Awaitable, Callable, Mapping

import pytest
from rich.console import Console

from ops.job.as_map import story_as_map
from ops.job.log import NoSuchByproduct, byproduct
from ops.job.story import JobStory, job_story
from ops.job.view import render_story
from pipeline.messages import Grade, JobSpec, Limits, Trajectory
from pipeline.redis_client import ask
from pipeline.scripts import Scripts
from pipeline.testing import a_template, a_trajectory, wait_until
from tests.integration.stages.fleet import TASK, Fleet, Play
from workers.graders.errors import GraderError
from workers.handlers.base import EvalContext, RunContext
from workers.handlers.submission import submitted
from workers.sandbox.errors import ExecTimeout, SandboxGone, SandboxTaken, SessionStartError

pytestmark = pytest.mark.one_server

GOLD = "the gold answer"
Break = Callable[[EvalContext], Awaitable[Grade]]


def gold(spec: JobSpec) -> Trajectory:
    return submitted(GOLD, {"patch": "+1"})


class Grader:
    """Breaks on answers, and grades gold as it is told to; keeps what it was asked, in order."""

    def __init__(self, breaks: Break, *, on_gold: Break | None = None, times: int = 99) -> None:
        self.asked: list[str] = []
        self._breaks = breaks
        self._on_gold = on_gold
        self._times = times

    async def __call__(self, context: EvalContext) -> Grade:
        is_gold = context.trajectory.answer == GOLD
        self.asked.append("gold" if is_gold else "answer")
        if is_gold:
            return await self._on_gold(context) if self._on_gold else Grade(reward=1.0, components={"tests": 1.0}, grader="play/7")
        if self.asked.count("answer") <= self._times:
            return await self._breaks(context)
        return Grade(reward=0.5, grader="play/7")


async def fails(context: EvalContext) -> Grade:
    raise GraderError("it printed no verdict", grader="play")


async def raises_a_group(context: EvalContext) -> Grade:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fails(context))
    raise AssertionError("the group has raised")


async def is_no_number(context: EvalContext) -> Grade:
    return Grade(reward=math.nan, grader="play/7")


async def hangs(context: EvalContext) -> Grade:
    await asyncio.Event().wait()
    raise AssertionError("never")


async def leaves(context: EvalContext) -> Grade:
    raise SystemExit(1)


def raising(error: Exception) -> Break:
    async def breaks(context: EvalContext) -> Grade:
        raise error

    return breaks


WAYS: dict[str, tuple[Break, str]] = {
    "an error of the grader": (fails, "grader: GraderError: play grader: it printed no verdict"),
    "the same in a group of tasks": (raises_a_group, "grader: GraderError: "),
    "a reward that is no number": (is_no_number, "grader: GraderError: play/7 grader: reward is nan"),
    "EVAL's limit of time": (hangs, "stage: TimeoutError"),
    "a sandbox that ended under it": (raising(SandboxGone("s1", "killed")), "sandbox: SandboxGone"),
    "a shell that does not come up": (raising(SessionStartError("shell", "/bin/bash: not found")), "sandbox: SessionStartError"),
    "a command that nothing ends": (raising(ExecTimeout("tests", 1.0, b"", b"")), "sandbox: ExecTimeout"),
    "an error of its code": (raising(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")), "handler: UnicodeDecodeError"),
    "a grader that leaves": (leaves, "handler: HandlerExited"),
}


class OneForEach:
    """A grader for each job, by the id of its prompt."""

    def __init__(self, graders: Mapping[str, Grader]) -> None:
        self._graders = list(graders.values())

    async def __call__(self, context: EvalContext) -> Grade:
        return await self._graders[int(context.spec.prompt.id)](context)


async def ends_of(fleet: Fleet, graders: Mapping[str, Grader]) -> dict[str, dict[str, str]]:
    """The record of a job for each grader."""
    template = a_template(task=TASK, max_failed=2, limits=Limits(eval_active_s=0.3))
    jobs = await fleet.add(*map(str, range(len(graders))), template=template)
    fleet.start(play=Play(on_evaluate=OneForEach(graders), on_gold=gold), slots=len(graders))
    records = await fleet.results(len(graders))
    return {name: records[job] for name, job in zip(graders, jobs, strict=True)}


async def test_an_answer_that_breaks_the_grader_twice_is_the_models_doing_when_gold_is_graded(fleet: Fleet) -> None:
    """It ended as a failure of infrastructure, without a reward: a way out of any task that the policy cannot solve."""
    graders = {way: Grader(breaks) for way, (breaks, _) in WAYS.items()}

    for way, record in (await ends_of(fleet, graders)).items():
        why = WAYS[way][1]
        assert (record["out"], record["rew"], record["stop"], record["comps"]) == ("model_failure", "0.0", "grader_broken", ""), way
        assert record["why"].startswith(f"grader_broken: {why}"), way
        assert graders[way].asked == ["answer", "answer", "gold"], way
        assert (await fleet.audit.job(record["job"]))["failed"] == "1", "the retry was the queue's"
        grade = await fleet.grade(record)
        assert (grade.reward, grade.grader, grade.details["stop"]) == (0.0, "play/7", "grader_broken"), way
        assert str(grade.details["reason"]).startswith(why), way


async def test_a_failure_before_in_another_stage_does_not_count_as_the_first(fleet: Fleet) -> None:
    """RUN overran its limit of time, and the grader once: both are `stage: TimeoutError`, and the answer was to blame at once."""
    ran: list[int] = []

    async def run(context: RunContext) -> Trajectory:
        ran.append(context.spec.attempt)
        if len(ran) == 1:
            raise TimeoutError("the page did not load")
        return a_trajectory()

    grader = Grader(raising(TimeoutError("slow")), times=1)
    await fleet.add("job", max_failed=3)
    fleet.start(play=Play(on_run=run, on_evaluate=grader, on_gold=gold))

    record = await fleet.result()

    assert (record["out"], record["rew"], grader.asked) == ("ok", "0.5", ["answer", "answer"])


async def test_a_sandbox_of_eval_that_its_node_took_away_costs_no_rollout(fleet: Fleet) -> None:
    """EVAL has a sandbox of its own. When the node's service died, the job went back to INIT as if RUN's were gone, and the agent acted
    again."""
    grader = Grader(raising(SandboxTaken("s1", "the service died")), times=1)
    (job,) = await fleet.add("job", max_failed=0)
    fleet.start(play=Play(on_evaluate=grader, on_gold=gold))

    record = await fleet.result()

    h = await fleet.audit.job(job)
    assert (record["out"], record["rew"], h["lost"], h["failed"]) == ("ok", "0.5", "1", "0")
    assert (record["ra"], h["att"], grader.asked) == ("2", "4", ["answer", "answer"])


@pytest.mark.parametrize("while_it_judges", ["answer", "gold"])
async def test_a_cancel_ends_the_judging_at_once(fleet: Fleet, scripts: Scripts, while_it_judges: str) -> None:
    """Also that of gold: the job has ended as cancelled, and no grade stands in its record."""
    began, ended = asyncio.Event(), asyncio.Event()

    async def waits(context: EvalContext) -> Grade:
        began.set()
        try:
            return await hangs(context)
        finally:
            ended.set()

    grader = Grader(fails, on_gold=waits) if while_it_judges == "gold" else Grader(waits)
    (job,) = await fleet.add("job", max_failed=0)
    fleet.start(play=Play(on_evaluate=grader, on_gold=gold))
    await began.wait()

    await scripts.cancel("job", [job], "user")

    record = await fleet.result()
    await wait_until(lambda: ended.is_set(), "the grader was told")
    assert (record["out"], record["why"], record["rew"], record["ea"]) == ("cancelled", "user", "", "0")


async def test_what_a_grader_attached_to_an_answer_that_broke_it_is_kept_and_golds_is_not(fleet: Fleet) -> None:
    """Whoever looks why an answer got a 0 looks into its log."""

    async def logs_and_fails(context: EvalContext) -> Grade:
        await context.attach("log", b"Segmentation fault")
        raise GraderError("no summary", grader="play")

    async def logs(context: EvalContext) -> Grade:
        await context.attach("log", b"12 passed")
        return Grade(reward=1.0)

    (job,) = await fleet.add("job")
    fleet.start(play=Play(on_evaluate=Grader(logs_and_fails, on_gold=logs), on_gold=gold))

    record = await fleet.result()

    assert await attached(fleet, record) == {b"log": b"Segmentation fault"}
    assert (await fleet.grade(record)).attached == {"log": 18}
    story = await job_story(fleet.client, fleet.keys, job)
    assert story_as_map(story)["attached"] == {"log": 18}
    assert "kept beside it: log (18 bytes); rollstream job log run1.job prints it" in shown(story)
    assert await byproduct(fleet.client, fleet.keys, job, "log") == b"Segmentation fault"
    with pytest.raises(NoSuchByproduct, match="keeps no 'junit' beside its grade; it keeps log"):
        await byproduct(fleet.client, fleet.keys, job, "junit")


def shown(story: JobStory) -> str:
    console = Console(file=io.StringIO(), width=500, color_system=None)
    render_story(console, story, longest=900)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def attached(fleet: Fleet, record: dict[str, str]) -> dict[bytes, bytes]:
    return dict(await ask(fleet.client, "HGETALL", fleet.keys.attached(record["job"], record["ea"])))


async def test_an_answer_whose_log_is_too_large_does_not_escape_its_0(fleet: Fleet) -> None:
    """The same on every worker, so no retry is spent on it."""

    async def logs(context: EvalContext) -> Grade:
        await context.attach("log", b"x" * (10 if context.trajectory.answer == GOLD else 2000))
        return Grade(reward=1.0)

    fleet.settings = fleet.settings.model_copy(update={"max_body_bytes": 1024})
    (job,) = await fleet.add("job")
    fleet.start(play=Play(on_evaluate=logs, on_gold=gold))

    record = await fleet.result()

    assert (record["out"], record["rew"], record["stop"]) == ("model_failure", "0.0", "grader_broken")
    assert "the bound is 1,024" in record["why"]
    assert (await fleet.audit.job(job))["failed"] == "0"
