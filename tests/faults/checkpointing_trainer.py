"""A trainer that writes a checkpoint every few steps and goes on from its last one, as a process that a test kills.

`python -m tests.faults.checkpointing_trainer RUN FOLDER ACCOUNTS STEPS`: trains every prompt of a data set of STEPS times `GROUPS` rows. A
checkpoint is a file in FOLDER, whole or not there: the state of the rollouts, and what was trained on the way to it, a line a step. That is
its weights: whoever goes back to it has trained nothing else. Workers of `ops.bench.dapo_task` read theirs in ACCOUNTS.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from ops.bench.dapo_task import TASK, load_weights
from pipeline.logs import configure_logs
from pipeline.settings import QueueSettings
from tests.faults.diary import Diary
from trainer_client import Run, Step, StepRequest, connect

GROUPS, MEMBERS = 2, 2
SAVE_EVERY = 5
UNIT_S = 0.02


class Checkpoint:
    """The last state that was kept."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "checkpoint.json"
        found: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.rollout: dict[str, object] | None = found.get("rollout")
        self.trained: list[dict[str, Any]] = found.get("trained", [])
        """Of each step: its index, the incarnation that trained it, its prompts, the versions that sampled its groups."""

    def save(self, run: Run) -> None:
        """Keeps what was trained until here."""
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps({"rollout": run.state_dict(), "trained": self.trained}))
        draft.replace(self._path)


async def main() -> None:
    run_id, folder, accounts, steps = sys.argv[1:]
    diary, checkpoint = Diary(Path(folder) / "diary"), Checkpoint(Path(folder))
    configure_logs(as_json=True, level="warning")
    options: dict[str, object] = {"seed": 2, "half_slow": False, "unit_s": UNIT_S}
    request = StepRequest(task=TASK, groups=GROUPS, n=MEMBERS, policy="every", max_staleness=1, options=options)
    async with connect(QueueSettings.load(), run=run_id, resume=checkpoint.rollout) as run:
        trained = len(checkpoint.trained)
        if checkpoint.rollout is None:
            checkpoint.save(run)  # of the untrained model: without it, one that dies soon would go on behind what it has lost
        await update(run, Path(accounts), trained)
        diary.note("connected", run.incarnation, trained)
        run.feed([{"number": number} for number in range(int(steps) * GROUPS)], shuffle_seed=5)
        async for step in run.steps(request, timeout_s=60):
            checkpoint.trained.append(told(step, run.incarnation))
            diary.note("trained", step.index)
            await update(run, Path(accounts), step.index)
            await step.ack()
            if step.index % SAVE_EVERY == 0:
                checkpoint.save(run)
                diary.note("saved", step.index)
        checkpoint.save(run)
    diary.note("ended")


def told(step: Step, incarnation: int) -> dict[str, Any]:
    """What a checkpoint remembers of a step."""
    members = [result.record for group in step.groups for result in group.members]
    versions = sorted({version for member in members for version in (member.first_version, member.last_version)})
    return {"step": step.index, "incarnation": incarnation, "prompts": [group.prompt_id for group in step.groups], "versions": versions}


async def update(run: Run, accounts: Path, number: int) -> None:
    """The policy that has trained so many steps."""
    load_weights(accounts, run.id, f"{run.incarnation}.{number}")
    await run.set_policy_version(number)


if __name__ == "__main__":
    asyncio.run(main())
