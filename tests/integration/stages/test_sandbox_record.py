"""The record of a job says what its sandboxes used over all stages, what bounded them, and what was ended in them; `job show` prints it."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ops.job.as_map import story_as_map
from ops.job.story import JobStory, job_story
from ops.job.view import render_story
from pipeline.messages import Grade, Trajectory
from pipeline.testing import a_trajectory
from tests.integration.stages.fleet import Fleet, Play
from workers.handlers.base import Environment, EvalContext, RunContext, StageContext
from workers.sandbox import Isolation, Limits, SandboxSpec
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.process import ProcessBackend
from workers.sandbox.service import RemoteSandboxes, served_here
from workers.stages.sandbox_record import written
from workers.tools import BashTool

pytestmark = pytest.mark.one_server

MIB = 1024**2
SPEC = SandboxSpec(isolation=Isolation.NONE, limits=Limits(sandbox_memory_bytes=160 * MIB))
COMPUTE = ["python3", "-c", "import time\nwhile time.process_time() < 0.3: pass"]
EAT = "python3 -c 'import time; x = bytearray(250 << 20); time.sleep(20)'"


@pytest.fixture
async def sandboxes(place: Path) -> AsyncIterator[RemoteSandboxes]:
    local = LocalSandboxes(ProcessBackend(), scratch_dir=place / "s", run_dir=place / "r", node="n1")
    async with served_here(local, place / "r") as remote:
        yield remote


async def init(context: StageContext) -> Environment:
    sandbox = await context.provider().start(SPEC, context.owner)
    await sandbox.exec(COMPUTE, timeout_s=15)
    return Environment(sandbox=(await sandbox.park()).to_map())


async def run(context: RunContext) -> Trajectory:
    async with await context.sandbox() as sandbox:
        await BashTool(sandbox.shell())({"command": EAT}, timeout_s=15)
    return replace(a_trajectory(), extra={"patch": "+1"})


async def evaluate(context: EvalContext) -> Grade:
    async with await context.provider().start(SPEC, context.owner) as clean:
        await clean.exec(COMPUTE, timeout_s=15)
    return Grade(reward=1.0, grader="play/1", details={"verdict": "right"})


async def test_a_job_says_what_its_sandboxes_used_and_what_was_ended_in_them(fleet: Fleet, sandboxes: RemoteSandboxes) -> None:
    (job,) = await fleet.add("job")
    fleet.start(play=Play(on_init=init, on_run=run, on_evaluate=evaluate), sandboxes=sandboxes)

    record = await fleet.result(timeout_s=30)

    assert record["out"] == "ok"
    story = await job_story(fleet.client, fleet.keys, job)
    use = story.sandbox
    assert use is not None
    assert use.cpu_s >= 2 * 0.3, "of INIT and RUN, which had one sandbox, and of EVAL's own"
    assert use.memory_peak_bytes > 160 * MIB
    assert use.enforced["file size"] == "RLIMIT_FSIZE"
    (notice,) = use.notices
    assert notice.startswith("memory: the sandbox ")
    assert (await fleet.trajectory(record)).extra["patch"] == "+1"
    shown = text_of(story)
    assert f"limit met  {notice}" in shown
    assert "enforced   memory: " in shown
    assert "verdict: right" in shown
    assert "'enforced'" not in shown, "the record stands in the details of the verdict too"
    assert story_as_map(story)["sandbox"] == use.to_map()


async def test_an_attempt_that_failed_says_what_its_sandbox_met_before(fleet: Fleet, sandboxes: RemoteSandboxes) -> None:
    async def breaks(context: RunContext) -> Trajectory:
        async with await context.sandbox() as sandbox:
            await sandbox.exec(EAT, timeout_s=15)
            raise OSError("no answer from the build")

    (job,) = await fleet.add("job", max_failed=0)
    fleet.start(play=Play(on_init=init, on_run=breaks), sandboxes=sandboxes)

    record = await fleet.result(timeout_s=30)

    assert record["out"] == "infra_failure"
    failed = (await fleet.audit.job(job))["err"]
    assert failed.startswith("handler: OSError: no answer from the build; before that, in its sandbox: memory: the sandbox ")


def test_what_a_stage_wrote_that_nobody_understands_costs_only_itself() -> None:
    newer = {"enforced": ["memory"], "notices": {}}

    assert written(newer, None) == {}
    assert written(None, None) == {}


def text_of(story: JobStory) -> str:
    console = Console(file=io.StringIO(), width=500, color_system=None)
    render_story(console, story, longest=900)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
