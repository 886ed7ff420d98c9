"""Judging a trajectory, and whose doing it is when that breaks. EVAL and `rollstream job regrade` judge by it.

    the grader answers                                      its grade
    it breaks, and might not again                          the error flies; the queue tries again, elsewhere
    it breaks on this answer twice, and grades gold as 1    the answer broke it: reward 0, stop `grader_broken`, the reason beside it
    it breaks twice, and there is no gold, or gold breaks   the error flies: infrastructure's
    it, too, or is not worth 1

Invariants
    1. Promise 7, both ways: a single failure is never a 0, whoever it looks like; an answer on which the grader fails again, while it
       grades the reference answer, does not escape its 0.
    2. The second try is the queue's where the job has one left, since another worker shares less of what may be broken; else it comes at
       once, here.
    3. Asked about is what an answer can do: an error of the grader or of its code, a NaN, the limit of time, a sandbox that ended under
       its guest, a by-product that is too large. Redis, a full node, a missing image, a service that cannot be reached, a cancel are
       nobody's answer: they fly at once, also while gold is graded.
    4. Every judging passes the gate first, and has the whole limit of EVAL. Gold is judged by the same handler, in this attempt; what it
       attaches is dropped.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields, replace

import msgpack
import structlog

from pipeline import codec
from pipeline.errors import JobCancelled, LeaseLost
from pipeline.messages import Grade, Stage, StopReason, Trajectory
from workers.graders.errors import GraderError
from workers.handlers.base import BROKEN_BY_ITS_GUEST, Environment, EvalContext, StageContext, TaskHandler
from workers.sandbox.errors import StaleAttempt
from workers.stages.byproducts import Byproducts
from workers.stages.failures import UNFIT, HandlerExited, described, failure_of, the_one_error
from workers.stages.stage import PROGRESS_MARGIN_S

log = structlog.get_logger(__name__)

GOLD_SCORE = 1.0
DOUBTFUL = frozenset(("grader", "stage", "handler"))
"""Boundaries that an answer can break in EVAL."""
DOUBTFUL_KINDS = frozenset(("body: BodyTooLarge", *(f"sandbox: {kind}" for kind in BROKEN_BY_ITS_GUEST)))
"""Of the others, these failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What came of a judging."""

    grade: Grade
    attached: Mapping[str, bytes]
    """By-products, by name."""
    broke: str = ""
    """How the answer broke the grader; empty = it was graded."""


def may_be_the_answers_doing(kind: str) -> bool:
    """Whether a failure in EVAL, as `<boundary>: <kind>`, is doubtful."""
    return kind.partition(": ")[0] in DOUBTFUL or kind in DOUBTFUL_KINDS


class Judge:
    """Judges trajectories of one attempt.

    Args:
        context: of the attempt.
        environment: what INIT made.
        max_attached_bytes: bound of all by-products together.
    """

    def __init__(self, handler: TaskHandler, context: StageContext, environment: Environment, *, max_attached_bytes: int) -> None:
        self._handler = handler
        self._context = context
        self._environment = environment
        self._max_attached_bytes = max_attached_bytes

    async def judge(self, trajectory: Trajectory, *, tries_left: bool, broke_before: Callable[[], Awaitable[bool]]) -> Judged:
        """The verdict.

        Args:
            tries_left: somebody tries again when this raises.
            broke_before: whether an earlier attempt failed of what may be the answer's doing; asked when this one does.

        Raises:
            Exception: what kept it from being judged; not proven to be the answer's doing.
        """
        byproducts = self._byproducts()
        try:
            return await self._once(trajectory, byproducts)
        except Exception as raised:
            kind = self._doubtful(raised)
            if not kind:
                raise
            is_second = await broke_before()
            if not is_second and tries_left and kind != "body: BodyTooLarge":  # which no other worker takes
                raise
            first = raised
        if not is_second:
            byproducts = self._byproducts()
            try:
                return await self._once(trajectory, byproducts)
            except Exception as raised:
                if not self._doubtful(raised):
                    raise
                first = raised
        gold = await self._gold()
        if gold is None:
            raise first
        return self._broken(trajectory, first, gold, byproducts)

    def _byproducts(self) -> Byproducts:
        return Byproducts(self._context.spec.job, self._max_attached_bytes)

    async def _once(self, trajectory: Trajectory, byproducts: Byproducts) -> Judged:
        context, limit_s = self._context, self._context.spec.template.limits.eval_active_s
        shared = {each.name: getattr(context, each.name) for each in fields(StageContext)}
        context.progress(limit_s + PROGRESS_MARGIN_S)
        context.gate()
        evaluation = EvalContext(**shared, environment=self._environment, trajectory=trajectory, attach=byproducts.attach)
        try:
            async with asyncio.timeout(limit_s):
                grade = await self._handler.evaluate(evaluation)
        except SystemExit as left:
            raise HandlerExited(f"the handler raised {left!r}") from left
        check_numbers(grade)
        return self._judged(grade, trajectory, byproducts)

    def _judged(self, grade: Grade, trajectory: Trajectory, byproducts: Byproducts, *, broke: str = "") -> Judged:
        kept = byproducts.kept
        grade = replace(grade, inputs=inputs_of(trajectory), attached={name: len(content) for name, content in kept.items()})
        return Judged(grade=grade, attached=kept, broke=broke)

    def _doubtful(self, raised: Exception) -> str:
        """`<boundary>: <kind>` of an error that may be the answer's doing; empty for any other."""
        error = the_one_error(raised)
        if not isinstance(error, Exception) or isinstance(error, (*UNFIT, JobCancelled, LeaseLost, StaleAttempt)):
            return ""
        failure = failure_of(Stage.EVAL, error)
        kind = f"{failure.boundary}: {failure.kind}"
        return kind if may_be_the_answers_doing(kind) else ""

    async def _gold(self) -> Grade | None:
        """The grade of the gold answer; None when there is none, or it is not worth 1 here and now."""
        spec = self._context.spec
        try:
            gold = self._handler.gold(spec)
            if gold is None:
                return None
            grade = (await self._once(gold, self._byproducts())).grade
        except Exception as raised:
            if not self._doubtful(raised):
                raise
            log.warning("gold_not_graded", job_id=spec.job, task=spec.template.task, error=str(the_one_error(raised))[:500])
            return None
        if grade.reward != GOLD_SCORE:
            log.warning("gold_not_worth_1", job_id=spec.job, task=spec.template.task, reward=grade.reward)
            return None
        return grade

    def _broken(self, trajectory: Trajectory, raised: Exception, gold: Grade, byproducts: Byproducts) -> Judged:
        error = the_one_error(raised)
        assert isinstance(error, Exception)
        why = described(failure_of(Stage.EVAL, error))
        log.warning("answer_broke_grader", job_id=self._context.spec.job, task=self._context.spec.template.task, why=why[:500])
        details = {
            "verdict": StopReason.GRADER_BROKEN.value,
            "stop": StopReason.GRADER_BROKEN.value,
            "reason": why,
            "gold": f"graded {gold.reward:g} in {gold.seconds:.2f} s, right after",
        }
        return self._judged(Grade(reward=0.0, details=details, grader=gold.grader), trajectory, byproducts, broke=why)


def check_numbers(grade: Grade) -> None:
    """A reward that is no number is the grader's failure, never a 0.

    Raises:
        GraderError
    """
    for name, value in {"reward": grade.reward, **grade.components}.items():
        if not math.isfinite(value):
            raise GraderError(f"{name} is {value}: a reward must be a finite number", grader=grade.grader or "unnamed")


def inputs_of(trajectory: Trajectory) -> dict[str, str]:
    """Digests of what a grader is given of a trajectory: who grades it again can tell whether it is the same."""
    extra = msgpack.packb(dict(trajectory.extra), default=codec.pack_other, use_bin_type=True)
    return {
        "answer": hashlib.blake2b(trajectory.answer.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest(),
        "extra": hashlib.blake2b(extra, digest_size=16).hexdigest(),
    }
