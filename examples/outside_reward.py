"""Rewards that EVAL cannot compute: a judge beside the trainer reports them, and a hook ranks each group before it closes.

    python examples/outside_reward.py --run judged

Workers, a supervisor and a model are needed as for `trainer_loop.py`. Here the judge is a rule (a right number, and short, is good), so
that the example runs anywhere; a person, a reward model on the trainer's own devices, or another service would take its place. A judge that
dies loses nothing: what still awaits its reward is given out again, until its deadline, and a report that was sent twice counts once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import RollstreamError
from pipeline.messages import RewardSource
from trainer_client import HeldGroup, LimitsRequest, Run, StepRequest, connect

PROBLEMS = Path(__file__).resolve().parents[1] / "workers/handlers/math/problems/arithmetic.jsonl"


async def main(options: argparse.Namespace) -> None:
    request = StepRequest(
        task="math",
        groups=options.groups,
        n=options.n,
        ahead=0,
        reward=RewardSource.OUTSIDE,  # EVAL grades nothing: the job awaits its reward
        reward_deadline_s=120.0,  # without one by then it ends as infra_failure, never with a 0
        informative_on="rank",  # the filter looks at what the hook adds
        limits=LimitsRequest(max_turns=4, max_sampled_tokens=1200),
    )
    async with connect(run=options.run) as run:
        run.group_hook(rank, deadline_s=60.0)  # before the first step: groups in flight would not be held
        run.feed(read_problems(options.problems), epochs=options.epochs, shuffle_seed=7)
        answers: Counter[str] = Counter()
        judge = asyncio.create_task(keep_judging(run, answers))
        try:
            async for step in run.steps(request, count=options.steps, timeout_s=options.timeout):
                for group in step.groups:
                    ranks = [member.record.components["rank"] for member in group.members]
                    print(f"step {step.index} {group.prompt_id}: rewards {list(group.rewards)}, ranks {ranks}", flush=True)
                await step.ack()
        finally:
            judge.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await judge
        print(f"reports: {dict(answers)}")


async def keep_judging(run: Run, answers: Counter[str]) -> None:
    """Reports a reward for each job that awaits one. What is cancelled meanwhile answers `late`: nothing to do about."""
    async for awaiting in run.awaiting():
        trajectory, prompt = await awaiting.trajectory(), await awaiting.prompt()
        right = str(prompt.data["answer"]) in trajectory.answer
        answers[(await run.report_reward(awaiting, float(right), {"short": 1.0 / len(trajectory.turns)})).value] += 1


async def rank(group: HeldGroup) -> Mapping[int, Mapping[str, float]]:
    """Components that need the whole group: here the place by length, shortest first. The score that the judge gave stands.

    The judge may still be at work on some of them: the group closes when both have spoken.
    """
    lengths = {member.number: len(member.trajectory.answer) if member.trajectory else 0 for member in group.members}
    order = sorted(lengths, key=lambda number: (lengths[number], number))
    return {number: {"rank": 1.0 - place / max(1, len(order) - 1)} for place, number in enumerate(order)}


def read_problems(path: Path) -> list[dict[str, object]]:
    """Rows of a JSON-lines file; a first line that describes the file is left out."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [row for row in rows if "question" in row]


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Take some steps with rewards from outside.")
    parser.add_argument("--run", default="judged", help="id of the run (judged)")
    parser.add_argument("--steps", type=int, default=2, help="how many steps (2)")
    parser.add_argument("--groups", type=int, default=2, help="groups a step (2)")
    parser.add_argument("--n", type=int, default=4, help="rollouts a group (4)")
    parser.add_argument("--epochs", type=int, default=10, help="how often the problems are fed (10)")
    parser.add_argument("--problems", type=Path, default=PROBLEMS, help="JSON lines with `question` and `answer`")
    parser.add_argument("--timeout", type=float, default=120.0, help="longest wait for one step, in seconds (120)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        asyncio.run(main(parse(sys.argv[1:])))
    except RollstreamError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; what awaits its reward is given out again next time")
