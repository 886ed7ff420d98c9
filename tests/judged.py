"""A handler asked for its grade as EVAL asks it, without a queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeline.messages import Grade, JobSpec, Prompt, RewardSource, Trajectory
from pipeline.testing.builders import a_job
from workers.handlers.base import Environment, EvalContext, TaskHandler
from workers.sandbox.base import SandboxProvider
from workers.sandbox.spec import SandboxOwner


def spec_of(
    task: str, row: Mapping[str, object], options: Mapping[str, object] | None = None, *, reward: RewardSource = RewardSource.TASK
) -> JobSpec:
    """A job that asks `row` of a task."""
    spec = a_job()
    template = replace(spec.template, task=task, options=options or {}, reward=reward)
    return replace(spec, template=template, prompt=Prompt(id=str(row.get("id", "p")), data=row))


def eval_context(spec: JobSpec, trajectory: Trajectory, sandboxes: SandboxProvider | None = None) -> EvalContext:
    """What EVAL hands a handler; what is attached is dropped."""

    async def attach(name: str, content: bytes) -> None:
        pass

    return EvalContext(
        spec=spec,
        owner=SandboxOwner(job_id=spec.job, attempt=spec.attempt, boot_id="test"),
        gate=lambda: None,
        progress=lambda seconds: None,
        retries=0,
        sandboxes=sandboxes,
        environment=Environment(),
        trajectory=trajectory,
        attach=attach,
    )


async def judged(handler: TaskHandler, spec: JobSpec, trajectory: Trajectory) -> Grade:
    """The grade of a trajectory."""
    return await handler.evaluate(eval_context(spec, trajectory))
