"""What the work of every stage has in common: read the spec, find the handler, work within the stage's limit, turn what is raised into an
end."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeline.attempts import Awaiting, End, GivenUp, JobControl, Settled
from pipeline.errors import JobCancelled, LeaseLost
from pipeline.messages import JobSpec, Outcome, RewardSource, Stage
from pipeline.scripts.calls import Begun
from workers.handlers.base import StageContext, TaskHandler
from workers.handlers.registry import Handlers
from workers.sandbox.base import SandboxProvider
from workers.sandbox.errors import StaleAttempt
from workers.sandbox.spec import SandboxOwner
from workers.stages.bodies import Bodies
from workers.stages.failures import HandlerExited, end_of, kind_of, the_one_error
from workers.stages.held_sandboxes import HeldSandboxes
from workers.stages.measures import Measures, end_word, unread_measures
from workers.stages.sandbox_record import used_by

if TYPE_CHECKING:
    from workers.stages.traces.traces import Traces

PROGRESS_MARGIN_S = 30.0
"""A stage that overruns its own limit has this long to come back before its lease is let go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this process runs."""

    node: str
    epoch: str
    """Since when the environments of this node exist; a new one means that older handles are void."""
    boot: str


def waiting_for_more(end: End, spec: JobSpec) -> End:
    """The end of a job that was asked for with a reward from outside, or whose group waits for its hook (ADR 10).

    What the policy did awaits; what broke, was cancelled or is past its deadline has ended.
    """
    if not isinstance(end, Settled) or end.settlement.outcome not in (Outcome.OK, Outcome.MODEL_FAILURE):
        return end
    template = spec.template
    without = template.reward is RewardSource.OUTSIDE and end.settlement.reward is None
    hold_s = template.hold_s if spec.group else 0.0
    if not (without or hold_s):
        return end
    due_s = template.reward_deadline_s if without else None
    return Awaiting(end.settlement, end.body, end.kind, due_s, hold_s, attached=end.attached)


class StageWork(ABC):
    """The work of one stage on one shard, for `pipeline.consumer.Consumer`."""

    stage: Stage
    measures: Measures
    """What it counts in; nobody reads them until its process gives it those that are kept."""
    traces: Traces | None = None
    """Where its spans go; None = nobody asked for any."""

    def __init__(self, *, bodies: Bodies, handlers: Handlers, sandboxes: SandboxProvider | None, place: Place) -> None:
        self.bodies = bodies
        self.handlers = handlers
        self.sandboxes = sandboxes
        self.place = place
        self.measures = unread_measures(self.stage)

    async def __call__(self, control: JobControl) -> End:
        """Works on one attempt. What goes wrong is in the end it returns; only cancellation and a lost lease are raised."""
        measures, began_s = self.measures, time.monotonic()
        measures.claims.add()
        if self._was_begun_before(control.begun):
            measures.retries.add()
        measures.busy_slots.add()
        end: End | None = None
        try:
            end = await self._end_of(control)
            return end
        except (JobCancelled, LeaseLost, asyncio.CancelledError):
            end = control.interrupted()
            raise
        finally:
            measures.busy_slots.add(-1)
            measures.attempts[end_word(end)].add()
            measures.attempt_seconds.observe(time.monotonic() - began_s)
            if self.traces is not None:
                self.traces.ended(control, end)

    def _was_begun_before(self, begun: Begun) -> bool:
        """Whether an earlier attempt was in this stage: attempts count up through all of them."""
        before = {Stage.INIT: 0, Stage.RUN: begun.init_attempt, Stage.EVAL: begun.run_attempt}[self.stage]
        return begun.attempt > before + 1

    async def _end_of(self, control: JobControl) -> End:
        handler: TaskHandler | None = None
        context: StageContext | None = None
        try:
            spec = await self.bodies.spec(control.begun)
            if self.traces is not None:
                await self.traces.begin(control, spec, self.stage, self.bodies)
            handler = await self.handlers.find(spec.template.task)
            context = self.context(control, spec)
            return waiting_for_more(await self.work(control, handler, context), spec)
        except (JobCancelled, LeaseLost, asyncio.CancelledError):
            raise
        except (Exception, SystemExit) as raised:  # the one place where whatever a handler raises becomes data
            error = the_one_error(raised)
            if isinstance(error, JobCancelled | LeaseLost):
                raise error from raised
            if isinstance(error, StaleAttempt):
                raise LeaseLost(control.held.job, control.held.attempt) from error
            if not isinstance(error, Exception):
                error = HandlerExited(f"the handler raised {error!r}")
            if context is not None:
                context = replace(context, last_failure=kind_of(await self.bodies.last_error(control.held.job, self.stage)))
            end = end_of(self.stage, error, handler, context)
            if context is None:
                return end
            if isinstance(end, GivenUp) and (used := await used_by(context)) is not None and used.notices:
                end = replace(end, why=f"{end.why}; before that, in its sandbox: {used.notices[-1]}")
            return waiting_for_more(end, context.spec)

    def context(self, control: JobControl, spec: JobSpec) -> StageContext:
        """What the handler gets of this attempt."""
        sandboxes: HeldSandboxes | None = None
        if self.sandboxes is not None:
            sandboxes = HeldSandboxes(self.sandboxes, control.gate, measures=self.measures)
            control.on_left_behind(sandboxes.take)
        return StageContext(
            spec=spec,
            owner=SandboxOwner(job_id=spec.job, attempt=spec.attempt, boot_id=self.place.boot),
            gate=control.gate,
            progress=control.progress,
            retries=control.begun.failed,
            sandboxes=sandboxes,
        )

    @abstractmethod
    async def work(self, control: JobControl, handler: TaskHandler, context: StageContext) -> End:
        """The stage itself."""
