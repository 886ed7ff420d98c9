"""Judging without a queue: what is tried again, what is asked of gold, and what that proves (the table in `stages/judging.py`)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from pipeline.engines.errors import ModelError
from pipeline.errors import BodyTooLarge, BrokerUnreachable, InvalidRequest, JobCancelled, LeaseLost
from pipeline.messages import Grade, JobSpec, Limits, Trajectory
from pipeline.testing import a_job, a_template, a_trajectory
from workers.graders.errors import GraderError
from workers.handlers.base import Environment, EvalContext, NoSandboxes, RunContext, StageContext, TaskHandler
from workers.handlers.submission import submitted
from workers.sandbox.errors import ImageMissing, NodeUnavailable, SandboxGone, SandboxStartError, SandboxTaken, StaleAttempt
from workers.sandbox.spec import SandboxOwner
from workers.stages.byproducts import Byproducts
from workers.stages.judging import Judge, Judged, inputs_of

GOLD = "the gold answer"
ANSWER = a_trajectory()
FAILS = GraderError("it printed no verdict", grader="play")
RIGHT = Grade(reward=1.0, grader="play/7")
Says = Grade | BaseException | Callable[[EvalContext], Awaitable[Grade]]


class Unreachable(GraderError):
    """The service that it asks."""

    may_be_the_answers_doing = False


@dataclass
class Scripted(TaskHandler):
    """Grades as it is told, one saying a call; the last one stands."""

    of_answer: list[Says]
    of_gold: list[Says] = field(default_factory=lambda: [RIGHT])
    reference: Callable[[], Trajectory | None] = lambda: submitted(GOLD)
    asked: list[str] = field(default_factory=list)

    name = "play"

    async def run(self, context: RunContext) -> Trajectory:
        raise NotImplementedError

    def gold(self, spec: JobSpec) -> Trajectory | None:
        return self.reference()

    async def evaluate(self, context: EvalContext) -> Grade:
        is_gold = context.trajectory.answer == GOLD
        self.asked.append("gold" if is_gold else "answer")
        sayings = self.of_gold if is_gold else self.of_answer
        says = sayings.pop(0) if len(sayings) > 1 else sayings[0]
        if isinstance(says, BaseException):
            raise says
        return says if isinstance(says, Grade) else await says(context)


def a_judge(handler: TaskHandler, *, gate: Callable[[], None] = lambda: None, promised: list[float] | None = None) -> Judge:
    spec = a_job(template=a_template(limits=Limits(eval_active_s=0.1)))
    context = StageContext(
        spec=spec,
        owner=SandboxOwner(job_id=spec.job, attempt=1, boot_id="b"),
        gate=gate,
        progress=(promised if promised is not None else []).append,
        retries=0,
        sandboxes=None,
    )
    return Judge(handler, context, Environment(), max_attached_bytes=1024)


async def judged(handler: TaskHandler, *, tries_left: bool = False, broke_before: bool = False, judge: Judge | None = None) -> Judged:
    async def before() -> bool:
        return broke_before

    return await (judge or a_judge(handler)).judge(ANSWER, tries_left=tries_left, broke_before=before)


async def hangs(context: EvalContext) -> Grade:
    await asyncio.Event().wait()
    raise AssertionError("never")


async def test_one_failure_is_tried_again_elsewhere_and_asks_nothing_of_gold() -> None:
    """Promise 7: the network was away for a moment while this answer was judged, and back when gold was."""
    handler = Scripted([FAILS, Grade(reward=0.5)])

    with pytest.raises(GraderError, match="it printed no verdict"):
        await judged(handler, tries_left=True)

    assert handler.asked == ["answer"]
    assert (await judged(handler, broke_before=True)).grade.reward == 0.5


async def test_the_second_failure_is_the_answers_doing_when_gold_is_graded() -> None:
    handler = Scripted([FAILS])

    found = await judged(handler, tries_left=True, broke_before=True)

    assert (found.grade.reward, found.grade.grader, handler.asked) == (0.0, "play/7", ["answer", "gold"])
    assert found.broke == found.grade.details["reason"] == "grader: GraderError: play grader: it printed no verdict"
    assert found.grade.inputs == inputs_of(ANSWER), "of the answer, not of gold"


async def test_without_a_try_left_the_second_one_comes_at_once() -> None:
    handler = Scripted([FAILS])

    assert (await judged(handler)).broke

    assert handler.asked == ["answer", "answer", "gold"]


async def test_without_a_try_left_an_answer_that_is_graded_the_second_time_has_its_reward() -> None:
    handler = Scripted([FAILS, Grade(reward=0.5)])

    assert (await judged(handler)).grade.reward == 0.5


BAD_GOLD: dict[str, Says] = {
    "an error": FAILS,
    "a reward that is no number": Grade(reward=math.nan),
    "a component that is no number": Grade(reward=1.0, components={"tests": math.inf}),
    "the limit of time": hangs,
    "a sandbox that ended": SandboxGone("s2", "killed"),
    "worth nothing": Grade(reward=0.0),
    "worth nearly all": Grade(reward=0.999),
    "worth more than there is": Grade(reward=2.0),
}


@pytest.mark.parametrize("gold", list(BAD_GOLD))
async def test_gold_that_is_not_worth_1_proves_nothing(gold: str) -> None:
    handler = Scripted([FAILS], [BAD_GOLD[gold]])

    with pytest.raises(GraderError, match="it printed no verdict"):
        await judged(handler, broke_before=True)

    assert handler.asked == ["answer", "gold"]


def breaks() -> Trajectory | None:
    raise ValueError("the row has none")


@pytest.mark.parametrize("reference", [lambda: None, breaks], ids=["none", "an error"])
async def test_a_row_without_gold_proves_nothing(reference: Callable[[], Trajectory | None]) -> None:
    with pytest.raises(GraderError, match="it printed no verdict"):
        await judged(Scripted([FAILS], reference=reference), broke_before=True)


NOBODYS: list[Exception] = [
    SandboxStartError("bubblewrap", "no space left"),
    NodeUnavailable("bubblewrap", "it stops"),
    ImageMissing("swe:1"),
    SandboxTaken("s1", "the service died"),
    StaleAttempt("s1", 1, 2),
    NoSandboxes("none here"),
    BrokerUnreachable("gone"),
    InvalidRequest("no such option"),
    ModelError("the judge is away"),
    Unreachable("connection refused", grader="judge"),
    JobCancelled("job", "user"),
    LeaseLost("job", 1),
]


@pytest.mark.parametrize("error", NOBODYS, ids=lambda error: type(error).__name__)
async def test_what_no_answer_can_do_flies_at_once_also_while_gold_is_graded(error: Exception) -> None:
    of_answer, of_gold = Scripted([error]), Scripted([FAILS], [error])

    for handler in (of_answer, of_gold):
        with pytest.raises(type(error)):
            await judged(handler, broke_before=True)

    assert (of_answer.asked, of_gold.asked) == (["answer"], ["answer", "gold"])


async def test_every_judging_passes_the_gate_and_promises_a_sign_of_life() -> None:
    """A job that was cancelled while its answer hung went on to judge gold, for as long again."""
    passed, promised = [0], list[float]()

    def gate() -> None:
        passed[0] += 1
        if passed[0] == 3:
            raise JobCancelled("job", "user")

    handler = Scripted([hangs])

    with pytest.raises(JobCancelled):
        await judged(handler, judge=a_judge(handler, gate=gate, promised=promised))

    assert (handler.asked, len(promised)) == (["answer", "answer"], 3)


async def test_a_log_that_is_too_large_asks_gold_at_once() -> None:
    """It is as large on every worker: a retry would find nothing else."""

    async def logs(context: EvalContext) -> Grade:
        await context.attach("log", b"x" * 2000)
        return RIGHT

    handler = Scripted([logs])

    found = await judged(handler, tries_left=True)

    assert "body: BodyTooLarge: by-product 'log' of job" in found.broke
    assert "the bound is 1,024" in found.broke
    assert handler.asked == ["answer", "answer", "gold"]


async def test_by_products_are_those_of_the_answer_and_named_in_its_grade() -> None:
    async def logs_and_fails(context: EvalContext) -> Grade:
        await context.attach("log", b"Segmentation fault")
        raise FAILS

    async def logs(context: EvalContext) -> Grade:
        await context.attach("log", b"12 passed")
        return RIGHT

    found = await judged(Scripted([logs_and_fails], [logs]), broke_before=True)

    assert (found.attached, found.grade.attached) == ({"log": b"Segmentation fault"}, {"log": 18})


async def test_what_is_attached_has_a_bound_and_may_be_left_out() -> None:
    byproducts = Byproducts("job", 1024)
    await byproducts.attach("junit", b"x" * 600)

    with pytest.raises(BodyTooLarge, match=r"'log' of job job beside junit has 1,200 bytes, the bound is 1,024") as told:
        await byproducts.attach("log", b"x" * 600)

    assert (told.value.n_bytes, told.value.max_bytes) == (1200, 1024)
    await byproducts.attach("junit", b"x" * 1024)  # in place of the first
    assert {name: len(content) for name, content in byproducts.kept.items()} == {"junit": 1024}


@pytest.mark.parametrize("name", ["", "Log", "log.txt", "a b", "../log", "1log", "l" * 33, "log\n", "lög"])
async def test_names_of_by_products_are_plain_words(name: str) -> None:
    with pytest.raises(InvalidRequest, match="expected a lower-case letter"):
        await Byproducts("job", 1024).attach(name, b"log")


async def test_there_are_few_by_products() -> None:
    byproducts = Byproducts("job", 1024)
    for number in range(16):
        await byproducts.attach(f"n{number}", b"")

    with pytest.raises(InvalidRequest, match="at most 16"):
        await byproducts.attach("n16", b"")


def test_inputs_are_known_again_and_told_apart() -> None:
    one = submitted("4", {"patch": "+1", "counts": [1, 2]})

    assert inputs_of(one) == inputs_of(submitted("4", {"patch": "+1", "counts": [1, 2]}))
    assert inputs_of(one)["answer"] != inputs_of(submitted("5"))["answer"]
    assert inputs_of(one)["extra"] != inputs_of(submitted("4", {"patch": "+2", "counts": [1, 2]}))["extra"]
