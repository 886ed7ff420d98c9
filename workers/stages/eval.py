"""EVAL: the handler judges the trajectory; the terminal record says what came out. Nobody is asked when the reward comes from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline import codec
from pipeline.attempts import End, JobControl, Settled
from pipeline.errors import DamagedBody
from pipeline.messages import Grade, Outcome, RewardSource, Settlement, Stage, StopReason, Trajectory
from pipeline.scripts import Begun
from workers.agent.invariants import broken_promises
from workers.agent.trajectory import TrajectoryRecorder, TurnDelta
from workers.handlers.base import Environment, StageContext, TaskHandler
from workers.handlers.registry import Handlers
from workers.sandbox.base import SandboxProvider
from workers.stages.bodies import Bodies
from workers.stages.failures import kind_of
from workers.stages.judging import Judge, may_be_the_answers_doing
from workers.stages.sandbox_record import SANDBOX, used_by, written
from workers.stages.stage import PROGRESS_MARGIN_S, Place, StageWork
from workers.stages.ungraded import ungraded

SALVAGED_TTL_MS = 8 * 86_400_000
"""A salvaged trajectory lives at least as long as one that RUN handed on with the default settings."""
MODEL_STOPS = frozenset(
    (
        StopReason.TURNS,
        StopReason.TOKENS,
        StopReason.CONTEXT,
        StopReason.TIME,
        StopReason.STUCK,
        StopReason.SANDBOX_BROKEN,
        StopReason.GRADER_BROKEN,
    )
)
"""Ends that the policy is to blame for: in the statistics, with their reward, as `model_failure`."""


class EvalWork(StageWork):
    """Grades trajectories."""

    stage = Stage.EVAL

    def __init__(
        self, *, bodies: Bodies, handlers: Handlers, sandboxes: SandboxProvider | None, place: Place, max_attached_bytes: int
    ) -> None:
        super().__init__(bodies=bodies, handlers=handlers, sandboxes=sandboxes, place=place)
        self.max_attached_bytes = max_attached_bytes

    async def work(self, control: JobControl, handler: TaskHandler, context: StageContext) -> End:
        control.progress(context.spec.template.limits.eval_active_s + PROGRESS_MARGIN_S)
        begun, keys = control.begun, self.bodies.keys
        trajectory = await self._trajectory(begun)
        if context.spec.template.reward is RewardSource.OUTSIDE:
            control.gate()
            return Settled(judged_outside(trajectory))
        raw_environment = await self.bodies.get(keys.body(begun.claim.job, begun.init_attempt, Stage.INIT.value))
        judge = Judge(handler, context, codec.decode(Environment, raw_environment), max_attached_bytes=self.max_attached_bytes)

        async def broke_before() -> bool:
            return may_be_the_answers_doing(kind_of(await self.bodies.last_error(begun.claim.job, Stage.EVAL)))

        tries_left = context.retries < context.spec.template.max_failed
        judged = await judge.judge(trajectory, tries_left=tries_left, broke_before=broke_before)
        settlement, grade = settlement_of(trajectory, judged.grade), judged.grade
        if judged.broke:
            # no parts: who filters by one of them takes the reward in its place, which is 0
            settlement = replace(settlement, reason=f"{settlement.reason}: {judged.broke}", components={})
        if used := await used_by(context):
            grade = replace(grade, details={**grade.details, SANDBOX: written(trajectory.extra.get(SANDBOX), used)})
        return Settled(settlement, codec.encode(grade), Stage.EVAL.value, attached=judged.attached)

    async def _trajectory(self, begun: Begun) -> Trajectory:
        """What RUN handed on, or, of a lost attempt that is salvaged, what its journal adds up to; that is kept in its place."""
        keys, job = self.bodies.keys, begun.claim.job
        key = keys.body(job, begun.run_attempt, Stage.RUN.value)
        body = await self.bodies.find(key)
        if body is not None:
            return codec.decode(Trajectory, body)
        deltas = await self.bodies.journal(keys.body(job, begun.run_attempt, "turns"))
        if not deltas:
            raise DamagedBody(f"{key} is not there", b"")
        trajectory = salvaged(deltas)
        answer = next((message.content for message in reversed(trajectory.messages) if message.role == "assistant"), "")
        trajectory = replace(trajectory, answer=answer)
        await self.bodies.keep(job, begun.run_attempt, Stage.RUN.value, codec.encode(trajectory), ttl_ms=SALVAGED_TTL_MS)
        return trajectory


def salvaged(deltas: Sequence[bytes]) -> Trajectory:
    """What a journal adds up to.

    Raises:
        DamagedBody: it adds up to nothing, or to a trajectory that breaks promise 5 or 6.
        NewerMessage
    """
    try:
        trajectory = TrajectoryRecorder.replay(codec.decode(TurnDelta, delta) for delta in deltas).trajectory(StopReason.LOST)
    except (ValueError, LookupError, TypeError) as error:
        raise DamagedBody(f"the journal does not add up: {error}", b"") from error
    broken = broken_promises(trajectory)
    if broken:
        raise DamagedBody(f"the journal adds up to no valid trajectory: {'; '.join(broken)}", b"")
    return trajectory


def settlement_of(trajectory: Trajectory, grade: Grade) -> Settlement:
    """The terminal record of a graded trajectory."""
    stop = trajectory.stop
    if grade.details.get("stop") == StopReason.GRADER_BROKEN.value:
        stop = StopReason.GRADER_BROKEN
    return replace(_ended_by(stop, trajectory), reward=grade.reward, components={"score": grade.reward, **grade.components})


def judged_outside(trajectory: Trajectory) -> Settlement:
    """The end of a trajectory whose reward comes from outside."""
    return _ended_by(trajectory.stop, trajectory)


def _ended_by(stop: StopReason, trajectory: Trajectory) -> Settlement:
    outcome = Outcome.MODEL_FAILURE if stop in MODEL_STOPS else Outcome.EXPIRED if stop is StopReason.DEADLINE else Outcome.OK
    return replace(ungraded(trajectory), outcome=outcome, reason=stop.value if outcome is not Outcome.OK else "", stop=stop.value)
