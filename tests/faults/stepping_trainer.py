"""A trainer that takes one step after the other, as a process that a test kills.

`python -m tests.faults.stepping_trainer RUN DIARY STEPS HOLDS`. Lines of the diary: `connected INCARNATION`, `handed STEP GROUP...` before
it trains on a step, `acked STEP` after its ack. A step whose index is among HOLDS (comma separated) it holds for good, as if training took
forever.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from ops.bench.dapo_task import TASK
from pipeline.logs import configure_logs
from pipeline.settings import QueueSettings
from tests.faults.diary import Diary
from trainer_client import StepRequest, connect

PROMPTS = 600
GROUPS, MEMBERS = 2, 2
UNIT_S = 0.1


async def main() -> None:
    run_id, path, steps, held = sys.argv[1:]
    diary, holds = Diary(Path(path)), {int(index) for index in held.split(",") if index}
    configure_logs(as_json=True, level="warning")
    options: dict[str, object] = {"seed": 2, "half_slow": False, "unit_s": UNIT_S}
    request = StepRequest(task=TASK, groups=GROUPS, n=MEMBERS, over=1.5, ahead=1, options=options)
    async with connect(QueueSettings.load(), run=run_id) as run:
        diary.note("connected", run.incarnation)
        run.feed([{"number": number} for number in range(PROMPTS)], reserve=16)
        async for step in run.steps(request, count=int(steps) + 1 - (run.next_step or 1), timeout_s=60):
            diary.note("handed", step.index, *(group.id for group in step.groups))
            if step.index in holds:
                await asyncio.Event().wait()
            await step.ack()
            diary.note("acked", step.index)


if __name__ == "__main__":
    asyncio.run(main())
