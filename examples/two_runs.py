"""Two trainers on one fleet: each has its own servers, weights, pauses and results, and neither sees anything of the other.

    python -m workers.llm.scripted --socket /tmp/a.sock --problems workers/handlers/math/problems/arithmetic.jsonl
    python -m workers.llm.scripted --socket /tmp/b.sock --problems workers/handlers/math/problems/arithmetic.jsonl
    python examples/two_runs.py unix:/tmp/a.sock unix:/tmp/b.sock

Workers and a supervisor are shared. Here both trainers are in one process; nothing changes when they are on two machines. The second run
has twice the weight of the first, so while workers are scarce it gets twice the places. Each validates its policy after its last step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from pipeline.engines import Exchange
from pipeline.errors import RollstreamError
from trainer_client import Run, StepRequest, ValidationRequest, connect

PROBLEMS = Path(__file__).resolve().parents[1] / "workers/handlers/math/problems/arithmetic.jsonl"
ROWS = [json.loads(line) for line in PROBLEMS.read_text(encoding="utf-8").splitlines()[1:]]
HELD_OUT = ROWS[:4]
"""Never trained."""


async def main(options: argparse.Namespace) -> None:
    async with asyncio.TaskGroup() as trainers:
        for name, weight, server in (("small", 1.0, options.servers[0]), ("large", 2.0, options.servers[1])):
            trainers.create_task(train(name, weight, server, options), name=name)


async def train(name: str, weight: float, server: str, options: argparse.Namespace) -> None:
    """One trainer, from its first step to its validation."""
    async with connect(run=name, weight=weight) as run:
        await run.servers.attach(server, control="trainer")
        await update(run, (run.next_step or 1) - 1)
        run.feed(ROWS[len(HELD_OUT) :], epochs=10, shuffle_seed=3)
        async for step in run.steps(
            StepRequest(task="math", groups=2, n=4, max_staleness=0), count=options.steps, timeout_s=options.timeout
        ):
            rollouts = await step.rollouts()
            versions = sorted(
                {span.version for rollout in rollouts for segment in rollout.trajectory.segments for span in segment.versions}
            )
            runs = {rollout.run for rollout in rollouts}
            print(
                f"{name}: step {step.index}, rollouts of {runs}, sampled by {versions}, reward {step.metrics['reward_mean']:.2f}",
                flush=True,
            )
            await update(run, step.index)  # a pause of this run's server; the other run's calls go on
            await step.ack()
        validation = await run.validate(ValidationRequest(task="math", prompts=HELD_OUT, n=2), timeout_s=options.timeout)
        mean, best = validation.mean_at_k, validation.pass_at(2)
        print(f"{name}: held out by {validation.version}: mean@2 {mean.value:.2f}, pass@2 {best.value:.2f}", flush=True)
        await validation.ack()


async def update(run: Run, number: int) -> None:
    """Loads weights, here a name that the scripted server takes for a path, into the servers of one run."""
    async with run.weight_update(number) as servers:
        for server in servers:
            async with Exchange(server.url) as http:
                await http.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": f"{run.id}-{number}"}})


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train two runs beside each other on one fleet, and validate both.")
    parser.add_argument("servers", nargs=2, metavar="ADDRESS", help="http://host:port or unix:/path.sock, one for each run")
    parser.add_argument("--steps", type=int, default=2, help="how many steps (2)")
    parser.add_argument("--timeout", type=float, default=120.0, help="longest wait for one step, in seconds (120)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        asyncio.run(main(parse(sys.argv[1:])))
    except* RollstreamError as errors:
        sys.exit("; ".join(f"{type(error).__name__}: {error}" for error in errors.exceptions))
    except* KeyboardInterrupt:
        sys.exit("stopped; what was asked for goes on, and is here next time")
