"""A real worker whose task does what each job's prompt says: `python -m tests.faults.playing_worker STAGE NODE SLOTS SCRATCH DIARY`.

What a prompt may hold:

    turns     so many turns are journalled first
    seconds   then RUN goes on for so long, passing the gate as often as an agent with quick tools would
    deaf      true: RUN takes no notice of being interrupted
    blocks    true: RUN has the event loop to itself for as long

Lines of the diary: `begin|journalled|end|interrupted JOB ATTEMPT PID SECONDS`, the last being when the gate was passed last, by the
system's monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from pipeline.event_loop import run_process
from pipeline.logs import configure_logs
from pipeline.messages import Grade, Stage, Trajectory
from pipeline.process import Shutdown
from pipeline.settings import QueueSettings
from pipeline.testing.builders import a_trajectory
from tests.integration.stages.fleet import TASK, a_delta
from workers.handlers.base import Environment, EvalContext, RunContext, StageContext, TaskHandler
from workers.settings import WorkerSettings
from workers.worker import serve

CALL_S = 0.02
"""How long the calls of an agent take."""


class Playing(TaskHandler):
    """The task."""

    name = TASK

    def __init__(self, diary: Path) -> None:
        self._diary = diary

    async def init(self, context: StageContext) -> Environment:
        return Environment()

    async def run(self, context: RunContext) -> Trajectory:
        asked = context.spec.prompt.data
        turns, seconds = int(str(asked.get("turns", 0))), float(str(asked.get("seconds", 0)))
        context.progress(seconds + 60)
        self._note("begin", context, time.monotonic())
        for turn in range(turns):
            await context.journal(a_delta(turn))
        if turns:
            self._note("journalled", context, time.monotonic())
        if asked.get("blocks"):
            time.sleep(seconds)  # noqa: ASYNC251  # the fault it plays
        until_s, passed_s = time.monotonic() + seconds, 0.0
        while time.monotonic() < until_s:
            try:
                context.gate()
                passed_s = time.monotonic()
                await asyncio.sleep(CALL_S)
            except BaseException:
                self._note("interrupted", context, passed_s)
                if not asked.get("deaf"):
                    raise
        self._note("end", context, passed_s)
        return a_trajectory()

    async def evaluate(self, context: EvalContext) -> Grade:
        return Grade(reward=1.0)

    def _note(self, what: str, context: StageContext, at_s: float) -> None:
        # one short append is one write: lines of several processes do not mix
        with self._diary.open("a", encoding="ascii") as diary:
            diary.write(f"{what} {context.spec.job} {context.spec.attempt} {os.getpid()} {at_s:.4f}\n")


async def main() -> int:
    stage, node, slots, scratch, diary = sys.argv[1:]
    configure_logs(as_json=True, level="info")
    shutdown = Shutdown()
    shutdown.on_signals()
    shutdown.on_parent_exit(patience_s=float(os.environ.get("PATIENCE_S", "30")))
    grace_s = float(os.environ.get("GRACE_S", "30"))
    worker = WorkerSettings(stage=Stage(stage), node=node, slots=int(slots), scratch_dir=Path(scratch), grace_s=grace_s)
    return await serve(QueueSettings.load(), worker, shutdown, handlers={TASK: lambda: Playing(Path(diary))})


if __name__ == "__main__":
    sys.exit(run_process(main()))
