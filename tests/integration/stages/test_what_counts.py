"""Promise 7 from the handler to the trainer: what broke never counts, what the model broke counts as 0. Real stages, sandboxes, grader,
supervisor and client; one group for each way to go wrong, of which member 0 goes it."""

from __future__ import annotations

import asyncio
import math
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest

from pipeline.folders import make_private_folder
from pipeline.keys import Keys
from pipeline.messages import Grade, JobSpec, Outcome, Stage, StopReason, Trajectory
from pipeline.process import Shutdown
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import QueueAudit, a_trajectory, wait_until
from trainer_client import Step, StepRequest, connect
from workers.graders import MathGrader
from workers.handlers.base import EvalContext, RunContext
from workers.handlers.math.handler import MathHandler
from workers.sandbox import Isolation, SandboxSpec
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.process import ProcessBackend
from workers.sandbox.service import served_here
from workers.settings import WorkerSettings
from workers.worker import serve

TASK = "fragile"
INFRASTRUCTURE = ("NaN", "no reward", "failure")
"""Outside the statistics."""
MODEL = {"sandbox": StopReason.SANDBOX_BROKEN, "grader": StopReason.GRADER_BROKEN}
"""In them, with a reward of 0."""
ALL_NAN = "all NaN"
WAYS = (*INFRASTRUCTURE, *MODEL, ALL_NAN)
ENDLESS = r"\sum_{k=1}^{99999999999} k^{99999}"
N = 4
REQUEST = StepRequest(task=TASK, groups=len(WAYS) - 1, n=N, max_redraws=0, max_failed=1, ahead=0)


class Fragile(MathHandler):
    """Mathematics in which something breaks."""

    name = TASK

    def __init__(self) -> None:
        super().__init__()
        self._grader = MathGrader(processes=1, limit_s=0.3)

    def sandbox_spec(self, spec: JobSpec) -> SandboxSpec | None:
        return SandboxSpec(isolation=Isolation.NONE) if way(spec) == "sandbox" else None

    async def run(self, context: RunContext) -> Trajectory:
        member = context.spec.member
        match way(context.spec):
            case "sandbox":
                # what an agent may type
                await (await context.sandbox()).exec("kill -9 $PPID; sleep 60", timeout_s=60)
            case "failure":
                raise OSError("no space left on device")
            case "grader":
                return a_trajectory(answer=rf"\boxed{{{ENDLESS}}}")
        return a_trajectory(answer=rf"\boxed{{{member % 2}}}")

    async def evaluate(self, context: EvalContext) -> Grade:
        match way(context.spec):
            case "NaN" | "all NaN":
                return Grade(reward=math.nan)
            case "no reward":
                return Grade(reward=cast(float, None))
        return await super().evaluate(context)


def way(spec: JobSpec) -> str:
    """How a job goes wrong; empty when it does not."""
    found = str(spec.prompt.data["source"])
    return found if spec.member == 0 or found == ALL_NAN else ""


@pytest.fixture
async def fleet(settings: QueueSettings, tmp_path: Path) -> AsyncIterator[QueueSettings]:
    """Workers of all stages and a supervisor."""
    quick = settings.model_copy(update={"retry_backoff_s": 0.02, "retry_backoff_max_s": 0.1})
    shutdown = Shutdown()
    scratch = tmp_path / "scratch"
    async with AsyncExitStack() as stack:
        run_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rs-")))  # short, for sockets
        make_private_folder(scratch)
        local = LocalSandboxes(ProcessBackend(), scratch_dir=scratch / "sandboxes", run_dir=run_dir, node="n1")
        sandboxes = await stack.enter_async_context(served_here(local, run_dir))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        for stage in Stage:
            worker = WorkerSettings(stage=stage, node="n1", slots=8, grace_s=1.0, scratch_dir=scratch)
            tasks.create_task(serve(quick, worker, shutdown, handlers={TASK: Fragile}, sandboxes=sandboxes), name=stage.value)
        tasks.create_task(Supervisor(quick, name="s1", period_s=0.2).run(shutdown.stop), name="supervisor")
        yield quick
        shutdown.stop.set()


async def one_step(settings: QueueSettings) -> Step:
    """A step in which every way is taken once."""
    async with connect(settings, run="run1") as run:
        run.feed([{"question": "Zero or one?", "answer": "1", "source": way} for way in WAYS])
        async for step in run.steps(REQUEST, timeout_s=60):
            return step
    raise AssertionError("no step came")


@pytest.mark.slow
@pytest.mark.one_server
@pytest.mark.timeout(120)
async def test_what_broke_never_counts_and_what_the_model_broke_counts_as_0(fleet: QueueSettings, client: AsyncClient, keys: Keys) -> None:
    step = await one_step(fleet)

    groups = {WAYS[int(group.prompt_id.partition("-")[2])]: group for group in step.groups}
    for name in INFRASTRUCTURE:
        record, (broken,) = groups[name].record, groups[name].others
        assert (broken.outcome, broken.reward, broken.record.member) == (Outcome.INFRA_FAILURE, None, 0), name
        assert record.values == (None, 1.0, 0.0, 1.0), name
        assert (record.valid, groups[name].rewards) == (3, (1.0, 0.0, 1.0)), name
        assert record.mean == pytest.approx(2 / 3), name
    for name, stop in MODEL.items():
        record, member = groups[name].record, groups[name].members[0]
        assert (member.outcome, member.reward, member.record.stop) == (Outcome.MODEL_FAILURE, 0.0, stop), name
        assert record.values == (0.0, 1.0, 0.0, 1.0), name
        assert (record.draw, groups[name].others) == (0, ()), f"{name}: drawn again"
    audit = QueueAudit(client, keys)

    async def all_are_accounted() -> bool:
        return await audit.counter("run1", "groups.launched") == len(WAYS) and not await ask(client, "EXISTS", keys.flying("run1"))

    await wait_until(all_are_accounted, "the group of NaN is accounted", timeout_s=30)
    found = await audit.hash(keys.run("run1"))
    assert (found["groups.informative"], found["groups.dead"]) == ("5", "1")
    assert "groups.filtered" not in found, "a group of NaN is no group of zeros"
