"""A task's handler in this process: INIT, RUN and EVAL as workers call them, one after the other, without Redis.

For commands that try a task, check its data, or grade again what was graded before. What a stage does with what comes out (journal,
hand-off, settling) is not here. What a handler meets is the same: its limits of time, sandboxes of the node, its hooks' own errors.

Invariants
    - What a call started and left is ended when the call returns, raises or is cancelled; only what `init` parked lives on, until the
      sandboxes are closed.
    - Errors fly as the handler raised them. Nothing becomes a grade that the handler did not give.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ops.tasks.sandboxes import SandboxesOnDemand
from pipeline.messages import Grade, JobSpec, Trajectory
from pipeline.settings import QueueSettings
from workers.agent.limits import ActiveTime
from workers.agent.trajectory import TurnDelta
from workers.handlers.base import Environment, EvalContext, RunContext, StageContext, TaskHandler
from workers.handlers.registry import Handlers
from workers.llm.backend import Model
from workers.sandbox.base import SandboxProvider
from workers.sandbox.spec import SandboxOwner
from workers.stages.byproducts import Byproducts
from workers.stages.held_sandboxes import HeldSandboxes
from workers.stages.judging import Judge, Judged, check_numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """What EVAL found."""

    grade: Grade
    attached: Mapping[str, bytes]
    """By-products, by name: those that EVAL keeps beside the grade (`log`)."""


class Foreground:
    """Calls handlers; many calls may go on at a time. `foreground` makes one with all that it needs.

    Args:
        handlers: entered and left by whoever made them, as the sandboxes are.
        sandboxes: of this node; None = tasks that need one raise `NoSandboxes`.
    """

    def __init__(self, handlers: Handlers, sandboxes: SandboxProvider | None = None) -> None:
        self._handlers = handlers
        self._sandboxes = sandboxes

    async def handler(self, task: str) -> TaskHandler:
        """The handler of a task, opened.

        Raises:
            InvalidRequest: nobody brings it.
        """
        return await self._handlers.find(task)

    async def init(self, spec: JobSpec) -> Environment:
        """Makes the environment of a job."""
        handler = await self.handler(spec.template.task)
        handler.check_options(spec.template.options)
        async with self._stage(spec, spec.template.limits.init_active_s) as context:
            return await handler.init(context)

    async def run(
        self, spec: JobSpec, environment: Environment, model: Model, *, journal: Callable[[TurnDelta], Awaitable[None]] | None = None
    ) -> Trajectory:
        """Lets the agent act.

        Args:
            environment: of `init`; its sandbox is gone afterwards.
            journal: told each finished turn.
        """
        handler = await self.handler(spec.template.task)

        async def told(delta: TurnDelta) -> None:
            if journal is not None:
                await journal(delta)

        async with self._stage(spec, None) as context:  # RUN has a clock of its own
            return await handler.run(
                RunContext(
                    **_shared(context),
                    environment=environment,
                    backend=model,
                    journal=told,
                    active=ActiveTime(spec.template.limits.run_active_s),
                )
            )

    async def evaluate(self, spec: JobSpec, trajectory: Trajectory, environment: Environment | None = None) -> Graded:
        """Judges a trajectory.

        Args:
            environment: of INIT, for a handler that looks at its notes; a default one where it is not known any more.

        Raises:
            GraderError: the grader broke; whose fault that is, is not judged here.
        """
        handler = await self.handler(spec.template.task)
        byproducts = Byproducts(spec.job, QueueSettings().max_body_bytes)
        async with self._stage(spec, spec.template.limits.eval_active_s) as context:
            grade = await handler.evaluate(
                EvalContext(**_shared(context), environment=environment or Environment(), trajectory=trajectory, attach=byproducts.attach)
            )
        check_numbers(grade)
        return Graded(grade=grade, attached=byproducts.kept)

    async def judge(self, spec: JobSpec, trajectory: Trajectory, environment: Environment | None = None) -> Judged:
        """Judges a trajectory as EVAL does: when the grader breaks, the reference answer tells whose doing it was.

        Raises:
            GraderError: it breaks on the reference, too, or there is none.
        """
        handler = await self.handler(spec.template.task)
        async with self._stage(spec, None) as context:  # each judging has the limit of EVAL for itself
            judge = Judge(handler, context, environment or Environment(), max_attached_bytes=QueueSettings().max_body_bytes)
            return await judge.judge(trajectory, tries_left=False, broke_before=_no_earlier_attempt)

    @asynccontextmanager
    async def _stage(self, spec: JobSpec, limit_s: float | None) -> AsyncIterator[StageContext]:
        """One call of a handler, within its time; what it holds at its end is ended."""
        held = HeldSandboxes(self._sandboxes, _nothing) if self._sandboxes is not None else None
        context = StageContext(
            spec=spec,
            owner=SandboxOwner(job_id=spec.job, attempt=spec.attempt, boot_id=str(os.getpid())),
            gate=_nothing,
            progress=lambda seconds: None,
            retries=0,
            sandboxes=held,
        )
        try:
            async with asyncio.timeout(limit_s):
                yield context
        finally:
            if held is not None:
                await held.take()


def _nothing() -> None:
    """The gate of a job that nobody can cancel from outside: who does, cancels the call."""


async def _no_earlier_attempt() -> bool:
    return False


def _shared(context: StageContext) -> dict[str, Any]:
    return {each.name: getattr(context, each.name) for each in fields(StageContext)}


@asynccontextmanager
async def foreground(config: Path | None = None, *, handlers: Handlers | None = None) -> AsyncIterator[Foreground]:
    """All that a command needs: the handlers of this installation, and the sandboxes of this node when one is asked for.

    Args:
        config: a `rollstream.toml`.
        handlers: others than those of this installation.
    """
    async with handlers or Handlers(config=config) as found, SandboxesOnDemand(config) as sandboxes:
        yield Foreground(found, sandboxes)
