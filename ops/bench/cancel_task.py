"""The workers that `bench cancel` cancels: real stages, real sandboxes, and a task whose members never end by themselves.

    python -m ops.bench.cancel_task STAGE NODE INDEX SLOTS SCRATCH RUN_DIR DIARY

What a member does is in its prompt, by its number:

    call    one model call that lasts
    turns   short model calls, one after the other: some begin at any moment
    tool    one tool call that lasts, a tree of processes in its sandbox
    tools   short tool calls, one after the other

Lines of the diary: `tool JOB SECONDS`, when a tool call passed its gate, by the monotonic clock that all processes of a machine share.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

from ops.sandbox_service import ServiceFinder
from pipeline.event_loop import run_process
from pipeline.folders import make_private_folder
from pipeline.logs import configure_logs
from pipeline.messages import Grade, JobSpec, Sampling, Stage, Trajectory
from pipeline.process import Shutdown
from pipeline.settings import QueueSettings
from workers.handlers.base import EvalContext, RunContext, TaskHandler
from workers.llm.backend import GenRequest
from workers.sandbox.service import RemoteSandboxes
from workers.sandbox.service.settings import SandboxSettings
from workers.sandbox.spec import Isolation, SandboxSpec
from workers.settings import WorkerSettings
from workers.worker import serve

TASK = "endless"
LONG_TOKENS, SHORT_TOKENS = 6_000, 15
"""At 20 ms a token: two minutes, and 0.3 s."""
ENDLESS_S = 600.0
TREE = "sleep 601 & sleep 602 & sleep 603"
SHORT_COMMAND = "sleep 0.3"
WITH_SANDBOX = ("tool", "tools")


class Diary:
    """Lines that several processes append to one file: a short write is whole."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, what: str, job: str) -> None:
        """Notes that something happens to a job now."""
        os.write(self._file, f"{what} {job} {time.monotonic():.6f}\n".encode())


class EndlessTask(TaskHandler):
    """The task."""

    name = TASK

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    def sandbox_spec(self, spec: JobSpec) -> SandboxSpec | None:
        return SandboxSpec(isolation=Isolation.NONE) if part_of(spec) in WITH_SANDBOX else None

    async def run(self, context: RunContext) -> Trajectory:
        async with AsyncExitStack() as stack:
            if context.environment.is_local:
                sandbox = await stack.enter_async_context(await context.sandbox())
                while True:
                    context.gate()
                    self._diary.note("tool", context.spec.job)
                    await sandbox.shell().run(TREE if part_of(context.spec) == "tool" else SHORT_COMMAND, timeout_s=ENDLESS_S)
            tokens = LONG_TOKENS if part_of(context.spec) == "call" else SHORT_TOKENS
            number = 0
            while True:
                await context.backend.generate(a_request(context.spec, number, tokens), timeout_s=ENDLESS_S)
                number += 1

    async def evaluate(self, context: EvalContext) -> Grade:
        return Grade(reward=0.0)


def part_of(spec: JobSpec) -> str:
    """What a member does."""
    parts = str(spec.prompt.data["parts"]).split()
    return parts[spec.member]


def a_request(spec: JobSpec, number: int, max_tokens: int) -> GenRequest:
    """One model call of a job; its id begins with the job's."""
    return GenRequest(
        request_id=f"{spec.job}.{spec.attempt}.{number}",
        prompt_ids=[1, 2, 3, 4],
        sampling=Sampling(),
        max_tokens=max_tokens,
        seed=number * 1_000 + spec.member,
    )


async def main(stage: Stage, node: str, index: int, slots: int, scratch: Path, run_dir: Path, diary: Diary) -> int:
    """One worker process; its exit code."""
    shutdown = Shutdown()
    shutdown.on_signals()
    shutdown.on_parent_exit()
    make_private_folder(scratch)
    worker = WorkerSettings(stage=stage, node=node, index=index, slots=slots, scratch_dir=scratch, grace_s=0.0)
    await ServiceFinder(SandboxSettings(run_dir=run_dir, autostart=False), None, node)(shutdown.stop)
    async with RemoteSandboxes(run_dir) as sandboxes:
        return await serve(QueueSettings.load(), worker, shutdown, handlers={TASK: lambda: EndlessTask(diary)}, sandboxes=sandboxes)


if __name__ == "__main__":
    configure_logs(as_json=True, level="info")
    stage, node, index, slots, scratch, run_dir, diary = sys.argv[1:]
    sys.exit(run_process(main(Stage(stage), node, int(index), int(slots), Path(scratch), Path(run_dir), Diary(Path(diary)))))
