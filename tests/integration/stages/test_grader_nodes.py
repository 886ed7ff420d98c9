"""EVAL on nodes of all kinds: with sandboxes, with the wrong ones, with none. Any node may be given any job of EVAL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipeline import codec
from pipeline.messages import Grade, Prompt, Stage
from pipeline.redis_client import AsyncClient
from pipeline.testing import ManualWorker, a_template, a_trajectory, wait_until
from tests.integration.stages.fleet import Fleet, Play
from workers.handlers.base import Environment, EvalContext
from workers.handlers.submission import submitted
from workers.sandbox import Isolation, SandboxSpec
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.process import ProcessBackend
from workers.sandbox.service import RemoteSandboxes, served_here

pytestmark = pytest.mark.one_server
Output = list[str]


@pytest.fixture
async def sandboxes(place: Path) -> AsyncIterator[RemoteSandboxes]:
    """A node's service, whose sandboxes have no walls."""
    local = LocalSandboxes(ProcessBackend(), scratch_dir=place / "s", run_dir=place / "r", node="n1")
    async with served_here(local, place / "r") as remote:
        yield remote


class InASandbox:
    """Grades in a sandbox of the class that it is told; `seconds` there."""

    def __init__(self, isolation: Isolation, *, sleep: str = "0") -> None:
        self.attempts: list[int] = []
        self.began = asyncio.Event()
        self._isolation = isolation
        self._sleep = sleep

    async def __call__(self, context: EvalContext) -> Grade:
        self.attempts.append(context.spec.attempt)
        async with await context.provider().start(SandboxSpec(isolation=self._isolation), context.owner) as sandbox:
            self.began.set()
            result = await sandbox.exec(f"sleep {self._sleep}; echo right", timeout_s=600)
        return Grade(reward=float(result.stdout == b"right\n"), grader="play/1")


async def test_a_job_that_needs_a_sandbox_goes_to_a_node_that_has_some(fleet: Fleet, sandboxes: RemoteSandboxes) -> None:
    """It is handed back uncounted by the node that has none: that is no failure of the job."""
    grader = InASandbox(Isolation.NONE)
    (job,) = await fleet.add("job", max_failed=0)
    fleet.start(Stage.INIT, Stage.RUN)
    fleet.start(Stage.EVAL, play=Play(on_evaluate=grader), node="bare")
    await wait_until(lambda: bool(grader.attempts), "the bare node was given it")

    fleet.start(Stage.EVAL, play=Play(on_evaluate=grader), sandboxes=sandboxes)

    record = await fleet.result()
    h = await fleet.audit.job(job)
    assert (record["out"], record["rew"], h["failed"], h["lost"]) == ("ok", "1.0", "0", "0")


async def test_a_job_that_needs_walls_is_not_ended_by_a_node_that_has_none(fleet: Fleet, sandboxes: RemoteSandboxes) -> None:
    """INIT reads the classes that its node serves; EVAL reads all. A refusal of the backend ended the job for good: no retry could help
    there, but another node could."""
    grader = InASandbox(Isolation.ISOLATED)
    (job,) = await fleet.add("job", max_failed=0)
    fleet.start(Stage.INIT, Stage.RUN)

    fleet.start(Stage.EVAL, play=Play(on_evaluate=grader), sandboxes=sandboxes)

    async def handed_back() -> bool:
        return int((await fleet.audit.job(job))["att"]) >= 4

    await wait_until(handed_back, "it was handed back and given again")
    h = await fleet.audit.job(job)
    assert (h.get("out"), h["failed"], h["lost"]) == (None, "0", "0")


async def test_an_answer_that_ends_the_sandbox_it_is_judged_in_does_not_escape_its_0(fleet: Fleet, sandboxes: RemoteSandboxes) -> None:
    """What an answer's program may do; gold is judged in a sandbox of its own in the same attempt, and none of them is left."""
    judged: list[str] = []

    async def in_a_sandbox(context: EvalContext) -> Grade:
        is_gold = context.trajectory.answer == "gold"
        judged.append("gold" if is_gold else "answer")
        async with await context.provider().start(SandboxSpec(isolation=Isolation.NONE), context.owner) as sandbox:
            result = await sandbox.exec("echo right" if is_gold else "kill -9 $PPID; sleep 60", timeout_s=30)
        return Grade(reward=float(result.stdout == b"right\n"), grader="play/1")

    await fleet.add("job")
    fleet.start(Stage.INIT, Stage.RUN)
    fleet.start(Stage.EVAL, play=Play(on_evaluate=in_a_sandbox, on_gold=lambda spec: submitted("gold")), sandboxes=sandboxes)

    record = await fleet.result(timeout_s=20)

    assert (record["out"], record["rew"], record["stop"], judged) == ("model_failure", "0.0", "grader_broken", ["answer", "answer", "gold"])
    assert record["why"].startswith("grader_broken: sandbox: SandboxGone: ")
    assert list(await sandboxes.owned()) == []


async def test_a_grader_that_drains_leaves_no_sandbox_and_no_mark_on_its_job(fleet: Fleet, sandboxes: RemoteSandboxes) -> None:
    grader = InASandbox(Isolation.NONE, sleep="600")
    (job,) = await fleet.add("job", max_failed=0)
    fleet.start(Stage.INIT, Stage.RUN)
    (shutdown,) = fleet.start(Stage.EVAL, play=Play(on_evaluate=grader), sandboxes=sandboxes, grace_s=0.1)
    await grader.began.wait()
    _, worker = fleet.workers[-1]

    shutdown.stop.set()

    async with asyncio.timeout(10):
        assert await worker == 0
    assert list(await sandboxes.owned()) == []
    h = await fleet.audit.job(job)
    assert (h["st"], h["stage"], h["failed"], h["lost"]) == ("ready", "eval", "0", "0")


@contextlib.asynccontextmanager
async def process(*command: str, environment: dict[str, str]) -> AsyncIterator[tuple[asyncio.subprocess.Process, Output]]:
    """`rollstream COMMAND`, and the lines it has written; told to end at the end."""
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "ops.cli",
        *command,
        env={**os.environ, **environment},
        stderr=asyncio.subprocess.STDOUT,
        stdout=asyncio.subprocess.PIPE,
    )
    lines: Output = []

    async def read() -> None:
        assert started.stdout is not None
        async for line in started.stdout:
            lines.append(line.decode())

    reading = asyncio.create_task(read(), name=f"output of {command[0]}")
    try:
        yield started, lines
    finally:
        if started.returncode is None:
            started.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            await started.wait()
            await reading


@pytest.mark.timeout(90)
async def test_a_node_without_a_backend_grades_what_needs_none_and_gets_sandboxes_when_a_service_comes(
    fleet: Fleet, client: AsyncClient, place: Path
) -> None:
    """Since graders may need sandboxes, every EVAL worker joins the service of its node. Where none could come up, it ended, and nobody
    graded mathematics any more."""
    folders = {f"ROLLSTREAM_{name.upper()}_DIR": str(place / name) for name in ("scratch", "state", "sandbox_run")}
    queue = {"ROLLSTREAM_REDIS_URL": fleet.settings.redis_url, "ROLLSTREAM_NAMESPACE": fleet.settings.namespace}
    node = {**folders, **queue, "ROLLSTREAM_SANDBOX_BACKEND": "nonesuch"}
    problem = codec.encode(Prompt(id="job", data={"question": "2 + 2?", "answer": "4"}))
    await fleet.add("job", template=a_template(task="math"), prompt_body=problem)
    for stage, body in ((Stage.INIT, codec.encode(Environment())), (Stage.RUN, codec.encode(a_trajectory()))):
        worker_before = ManualWorker(fleet.scripts, stage)
        await worker_before.hand_off(*await worker_before.take(), body=body)
    async with process("worker", "run", "--stage", "eval", "--node", "bare", environment=node) as (worker, lines):
        await wait_until(lambda: any("worker_without_sandboxes" in line for line in lines), "it says so", timeout_s=30)
        assert any("nonesuch" in line for line in lines if "worker_without_sandboxes" in line)

        record = await fleet.result(timeout_s=20)

        assert (record["out"], record["rew"]) == ("ok", "1.0")
        local = LocalSandboxes(ProcessBackend(), scratch_dir=place / "s", run_dir=place / "sandbox_run", node="bare")
        async with served_here(local, place / "sandbox_run"):
            await wait_until(lambda: any("worker_comes_back" in line for line in lines), "it comes back", timeout_s=30)
            await wait_until(lambda: sum("worker_takes" in line for line in lines) == 2, "with sandboxes", timeout_s=20)
            worker.send_signal(signal.SIGTERM)
            async with asyncio.timeout(15):
                assert await worker.wait() == 0
