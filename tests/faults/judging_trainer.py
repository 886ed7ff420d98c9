"""A trainer that gives the rewards itself, as a process that a test kills: `python -m tests.faults.judging_trainer RUN DIARY`.

Two steps of one group, whose members it judges one by one and whose hook ranks them. What it trained on is noted before the step is acked:
`STEP PROMPT REWARDS RANKS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline.logs import configure_logs
from pipeline.messages import RewardSource
from pipeline.settings import QueueSettings
from tests.faults.diary import Diary
from trainer_client import HeldGroup, LimitsRequest, Run, SamplingRequest, StepRequest, connect

OUTSIDE_POINTS = ("await_reward", "report_reward", "report_group")
"""Failpoints of rewards from outside: the first is passed by EVAL workers, the others by trainers."""
STEPS = 2
REQUEST = StepRequest(
    task="math",
    groups=1,
    n=3,
    ahead=0,
    reward=RewardSource.OUTSIDE,
    informative_on="rank",
    options={"tools": False},
    sampling=SamplingRequest(max_tokens=300),
    limits=LimitsRequest(max_turns=2),
)


async def judge(run: Run) -> None:
    async for awaiting in run.awaiting():
        await awaiting.report(float(len((await awaiting.trajectory()).answer)))


def rank(group: HeldGroup) -> Mapping[int, Mapping[str, float]]:
    return {member.number: {"rank": float(member.number)} for member in group.members}


async def main() -> None:
    run_id, diary = sys.argv[1], Diary(Path(sys.argv[2]))
    configure_logs(as_json=True, level="warning")
    rows = [{"question": f"What is {a} plus {a + 1}?", "answer": str(2 * a + 1)} for a in range(40)]
    async with connect(QueueSettings.load(), run=run_id) as run:
        run.group_hook(rank, deadline_s=60.0)
        run.feed(rows, shuffle_seed=3)
        judging = asyncio.create_task(judge(run), name="judge")
        left = STEPS + 1 - (run.next_step or 1)
        if left > 0:
            async for step in run.steps(REQUEST, count=left, timeout_s=60):
                for group in step.groups:
                    ranks = ",".join(f"{member.record.components['rank']:g}" for member in group.members)
                    told = ",".join(f"{reward:g}" for reward in group.rewards)
                    answers = ",".join(f"{len(trajectory.answer)}" for trajectory in await group.trajectories())
                    diary.note(step.index, group.prompt_id, told, ranks, answers)
                await step.ack()
        judging.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await judging


if __name__ == "__main__":
    asyncio.run(main())
