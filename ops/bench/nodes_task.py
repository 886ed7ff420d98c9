"""The task of `bench nodes`: RUN sleeps for as long as its prompt says (`seconds`), in a sandbox of its node when it says `local`.

Workers find it as any installed task, by an entry point; `install` writes one into a folder for `PYTHONPATH`. Each RUN attempt leaves lines
in the account that `SLEEPING_ACCOUNT` names, one file a node: `began JOB SECONDS` and `slept JOB SECONDS`, by the monotonic clock that all
processes of a machine share. One that was killed has no second line.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from ops.bench.dapo_task import trajectory_of
from pipeline.messages import Grade, JobSpec, Trajectory
from workers.handlers.base import EvalContext, RunContext, TaskHandler
from workers.handlers.registry import ENTRY_POINTS
from workers.sandbox.spec import Isolation, SandboxSpec

TASK = "sleeping"
ACCOUNT = "SLEEPING_ACCOUNT"
TOKENS = 64


class SleepingTask(TaskHandler):
    """Rollouts that cost nothing but time."""

    name = TASK

    def sandbox_spec(self, spec: JobSpec) -> SandboxSpec | None:
        return SandboxSpec(isolation=Isolation.NONE) if spec.prompt.data["local"] else None

    async def run(self, context: RunContext) -> Trajectory:
        async with AsyncExitStack() as stack:
            if context.environment.is_local:
                await stack.enter_async_context(await context.sandbox())
            context.gate()
            _note("began", context.spec.job)
            await asyncio.sleep(float(str(context.spec.prompt.data["seconds"])))
            _note("slept", context.spec.job)
        return trajectory_of(TOKENS, "1.0")

    async def evaluate(self, context: EvalContext) -> Grade:
        return Grade(reward=1.0, grader=TASK)


def _note(what: str, job: str) -> None:
    with Path(os.environ[ACCOUNT]).open("a", encoding="ascii") as account:  # one short append is one write
        account.write(f"{what} {job} {time.monotonic():.4f}\n")


def install(folder: Path) -> None:
    """Makes the task one that is installed for whoever has `folder` on its path."""
    info = folder / "sleeping_task-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sleeping-task\nVersion: 0\n", encoding="ascii")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{TASK} = {__name__}:{SleepingTask.__name__}\n", encoding="ascii")


@dataclass(frozen=True, slots=True)
class Sleep:
    """One RUN attempt."""

    job: str
    node: str
    began_s: float
    ended_s: float | None
    """None: it was cut off, or goes on."""


def read_accounts(files: dict[str, Path]) -> list[Sleep]:
    """All attempts of some nodes, by when they began."""
    found: list[Sleep] = []
    for node, file in files.items():
        open_: dict[str, float] = {}
        for line in file.read_text(encoding="ascii").splitlines() if file.exists() else ():
            what, job, at = line.split()
            if what == "began":
                if job in open_:
                    found.append(Sleep(job, node, open_[job], None))
                open_[job] = float(at)
            else:
                found.append(Sleep(job, node, open_.pop(job), float(at)))
        found += [Sleep(job, node, began_s, None) for job, began_s in open_.items()]
    return sorted(found, key=lambda sleep: sleep.began_s)


def busy_slots(sleeps: list[Sleep], from_s: float, to_s: float) -> float:
    """Slots that were busy with work that came to its end, in the mean of a stretch of time."""
    total = 0.0
    for sleep in sleeps:
        if sleep.ended_s is not None:
            total += max(0.0, min(sleep.ended_s, to_s) - max(sleep.began_s, from_s))
    return total / (to_s - from_s)
