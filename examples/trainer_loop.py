"""A trainer without a model: it feeds problems, takes steps, looks at their tokens as a loss would, acks them, and goes on where it was.

    ./ops/launch demo --keep                                          # workers, a supervisor and a scripted model
    rollstream llm add --shared --run arithmetic ADDRESS              # this run may use that model too; the demo says where it is
    python examples/trainer_loop.py --run arithmetic --checkpoint /tmp/arithmetic.json

The checkpoint holds what `run.state_dict()` says beside whatever a real trainer keeps (weights, optimizer). Run the same command again
and it goes on with the next step. Copy the checkpoint away, run on, copy it back, and the steps since then are taken again: every prompt
handed out since comes back first, in its old order. Redis is that of `ROLLSTREAM_REDIS_URL`, else the embedded server of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pipeline.errors import RollstreamError
from trainer_client import Group, LimitsRequest, SamplingRequest, Step, StepRequest, connect

PROBLEMS = Path(__file__).resolve().parents[1] / "workers/handlers/math/problems/arithmetic.jsonl"
"""Problems that the scripted model of the demo has answers to."""


async def main(options: argparse.Namespace) -> None:
    """Takes `options.steps` steps, then lets go of the run; what is in flight is kept for the next time."""
    request = StepRequest(
        task="math",
        groups=options.groups,
        n=options.n,
        run_seed=17,
        sampling=SamplingRequest(temperature=1.0, max_tokens=400),
        limits=LimitsRequest(max_turns=4, max_sampled_tokens=1200),
    )
    async with connect(run=options.run, resume=read_checkpoint(options.checkpoint)) as run:
        print(f"run {run.id}, incarnation {run.incarnation}, next step {run.next_step or 1}", flush=True)
        run.feed(read_problems(options.problems), epochs=options.epochs, shuffle_seed=17)
        async for step in run.steps(request, count=options.steps, timeout_s=options.timeout, progress=True):
            print(await learn_from(step), flush=True)
            await step.ack()
            # after the ack: a state written before it would do the step again
            write_checkpoint(options.checkpoint, run.state_dict())


async def learn_from(step: Step) -> str:
    """Where a real trainer computes its loss: each sampled token has the advantage of its member."""
    await step.fetch()
    weights = [await advantages_of(group) for group in step.groups]
    tokens = np.concatenate(weights) if weights else np.zeros(0)
    numbers = step.metrics
    return (
        f"step {step.index}: {len(step.groups)} groups{' (short)' if step.is_short else ''}, "
        f"{numbers['members_trained']:.0f} members, reward {numbers['reward_mean']:.2f}, {len(tokens)} tokens in the loss, "
        f"mean |advantage| {np.abs(tokens).mean():.2f}, {numbers['groups_filtered']:.0f} groups filtered, {numbers['took_s']:.1f} s"
    )


async def advantages_of(group: Group) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Advantage of each token that counts, over all members: reward less the mean of the group (no division by the deviation)."""
    centred = np.asarray(group.rewards) - np.mean(group.rewards)
    found = []
    for advantage, trajectory in zip(centred, await group.trajectories(), strict=True):
        for segment in trajectory.segments:
            # token_ids, loss_mask and logprobs have one entry a token of the whole dialogue; the mask says which the model sampled
            assert np.isfinite(segment.logprobs[segment.loss_mask == 1]).all()
            found.append(np.full(int(segment.loss_mask.sum()), advantage))
    return np.concatenate(found) if found else np.zeros(0)


def read_problems(path: Path) -> list[dict[str, object]]:
    """Rows of a JSON-lines file; a first line that describes the file is left out."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [row for row in rows if "question" in row]


def read_checkpoint(path: Path | None) -> Mapping[str, object] | None:
    """The state in a checkpoint; None without one: the run then goes on after the last step that was acked."""
    if path is None or not path.exists():
        return None
    state: Mapping[str, object] = json.loads(path.read_text(encoding="utf-8"))["rollout"]
    return state


def write_checkpoint(path: Path | None, state: Mapping[str, object]) -> None:
    """Whole or not at all: a trainer may be killed while it writes."""
    if path is not None:
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps({"rollout": state}), encoding="utf-8")
        draft.replace(path)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Take some steps of a run, without a model to train.")
    parser.add_argument("--run", default="arithmetic", help="id of the run (arithmetic)")
    parser.add_argument("--steps", type=int, default=3, help="how many steps to take now (3)")
    parser.add_argument("--groups", type=int, default=2, help="informative groups a step (2)")
    parser.add_argument("--n", type=int, default=4, help="rollouts a group (4)")
    parser.add_argument("--epochs", type=int, default=10, help="how often the problems are fed (10)")
    parser.add_argument("--problems", type=Path, default=PROBLEMS, help="JSON lines with `question` and `answer`")
    parser.add_argument("--checkpoint", type=Path, help="file to go on from and to write after each step")
    parser.add_argument("--timeout", type=float, default=120.0, help="longest wait for one step, in seconds (120)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        asyncio.run(main(parse(sys.argv[1:])))
    except RollstreamError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; what was asked for goes on, and is here next time")
