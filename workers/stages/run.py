"""RUN: the handler lets the agent act against the model server of the job; finished turns are journalled; the trajectory goes to EVAL.

A wall deadline that comes while the agent runs keeps what was journalled: the job ends as `expired`, with the partial trajectory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields, replace

from pipeline import codec
from pipeline.attempts import End, HandedOff, JobControl, Settled
from pipeline.blobs import BlobStore
from pipeline.errors import JobCancelled, RollstreamError
from pipeline.messages import JobSpec, Stage, StopReason, Trajectory
from workers.agent.invariants import broken_promises
from workers.agent.limits import ActiveTime
from workers.agent.seeds import server_pin
from workers.agent.template_check import TemplateChecks
from workers.agent.trajectory import TrajectoryRecorder, TurnDelta
from workers.handlers.base import Environment, RunContext, StageContext, TaskHandler
from workers.handlers.registry import Handlers
from workers.sandbox.base import SandboxProvider
from workers.stages.bodies import Bodies
from workers.stages.concurrency import LimitedModel, Limiter
from workers.stages.concurrency.limited_model import PoolModel
from workers.stages.kept_blobs import KeptBlobs
from workers.stages.model_servers import ModelServers
from workers.stages.pooled_backend import PooledBackend
from workers.stages.sandbox_record import SANDBOX, used_by, written
from workers.stages.stage import PROGRESS_MARGIN_S, Place, StageWork
from workers.stages.ungraded import ungraded


class InvalidTrajectory(RollstreamError):
    """A handler gave a trajectory that breaks promise 5 or 6: it is not handed on."""

    def __init__(self, job: str, broken: Sequence[str]) -> None:
        super().__init__(f"trajectory of job {job} is not valid: {'; '.join(broken)}")


class RunWork(StageWork):
    """Lets agents act."""

    stage = Stage.RUN

    def __init__(
        self,
        *,
        bodies: Bodies,
        handlers: Handlers,
        sandboxes: SandboxProvider | None,
        place: Place,
        models: ModelServers,
        templates: TemplateChecks,
        limiter: Limiter | None = None,
        blobs: BlobStore | None = None,
    ) -> None:
        super().__init__(bodies=bodies, handlers=handlers, sandboxes=sandboxes, place=place)
        self.models = models
        self.templates = templates
        self.limiter = limiter
        self.blobs = blobs

    async def work(self, control: JobControl, handler: TaskHandler, context: StageContext) -> End:
        async with KeptBlobs(self.blobs, context.spec) as kept:
            end = await self._act(control, handler, context, kept)
            if isinstance(end, HandedOff):
                kept.stay()
            return end

    async def _act(self, control: JobControl, handler: TaskHandler, context: StageContext, kept: KeptBlobs) -> End:
        spec, claim = context.spec, control.begun.claim
        limits = spec.template.limits
        control.progress(limits.run_active_s + PROGRESS_MARGIN_S)
        body = await self.bodies.get(self.bodies.keys.body(claim.job, control.begun.init_attempt, Stage.INIT.value))
        environment = codec.decode(Environment, body)
        journalled: list[TurnDelta] = []
        turn_began_s = time.monotonic()

        async def journal(delta: TurnDelta) -> None:
            nonlocal turn_began_s
            journalled.append(delta)
            control.progress(limits.run_active_s + PROGRESS_MARGIN_S)
            sampled_tokens = sum(int(segment.sampled_mask.sum()) for segment in delta.segments)
            await control.journal(delta.index, codec.encode(delta), sampled_tokens)
            self.measures.sampled_tokens.add(sampled_tokens)
            before_s, turn_began_s = turn_began_s, time.monotonic()
            self.measures.turn_seconds.observe(turn_began_s - before_s)

        active = ActiveTime(limits.run_active_s)
        backend = self.models.for_job(
            claim.run,
            spec.template.model,
            claim.job,
            spec.attempt,
            gate=control.gate,
            progress=control.progress,
            waiting=active.waiting,
            group=spec.group,
            pin=server_pin(spec),
        )
        control.on_left_behind(backend.leave)
        traced = None if self.traces is None else self.traces.of(control.held)
        shared = {f.name: getattr(context, f.name) for f in fields(StageContext)}
        try:
            async with self._model(control, spec, backend, active) as way:
                model = way if traced is None else traced.model(way, spec.template.model)
                trajectory = await handler.run(
                    RunContext(
                        **shared,
                        environment=environment,
                        backend=model,
                        journal=journal,
                        active=active,
                        templates=self.templates,
                        keep_blob=kept,
                        used_tool=None if traced is None else traced.used_tool,
                    )
                )
        except (asyncio.CancelledError, JobCancelled):
            if control.cancel_reason != StopReason.DEADLINE or not journalled:
                raise
            partial = TrajectoryRecorder.replay(journalled).trajectory(StopReason.DEADLINE)
            partial = valid(claim.job, await self._recorded(partial, context, environment))
            kept.stay()
            return Settled(ungraded(partial), codec.encode(partial), Stage.RUN.value)
        if told := backend.told():
            trajectory = replace(trajectory, extra={**trajectory.extra, "servers": told})
        trajectory = await self._recorded(trajectory, context, environment)
        return HandedOff(codec.encode(valid(claim.job, trajectory)))

    async def _recorded(self, trajectory: Trajectory, context: StageContext, environment: Environment) -> Trajectory:
        """The trajectory, with what was used of sandboxes until it was there."""
        used = written(environment.used, await used_by(context))
        return replace(trajectory, extra={**trajectory.extra, SANDBOX: used}) if used else trajectory

    @asynccontextmanager
    async def _model(self, control: JobControl, spec: JobSpec, backend: PooledBackend, active: ActiveTime) -> AsyncIterator[PoolModel]:
        """The job's way to its server, through the limit of this process where there is one (ADR 15)."""
        async with AsyncExitStack() as stack:
            model: PoolModel = await stack.enter_async_context(backend)
            if self.limiter is not None:
                claim = control.begun.claim
                since_s = int(claim.entry.partition("-")[0]) / 1000
                job = self.limiter.job(claim.run, spec.template.model, claim.job, group=claim.group, since=since_s)
                place = stack.enter_context(job)
                control.on_left_behind(place.leave)
                model = LimitedModel(backend, place, gate=control.gate, waiting=active.waiting, progress=control.progress)
            yield model


def valid(job: str, trajectory: Trajectory) -> Trajectory:
    """The trajectory, if it may be believed.

    Raises:
        InvalidTrajectory
    """
    broken = broken_promises(trajectory)
    if broken:
        raise InvalidTrajectory(job, broken)
    return trajectory
