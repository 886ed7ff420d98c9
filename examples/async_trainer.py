"""A trainer that never lets the fleet wait: two steps are open beyond the one it trains on, so rollouts are up to two updates old.

    python -m workers.llm.scripted --socket /tmp/own.sock --problems workers/handlers/math/problems/arithmetic.jsonl
    python examples/async_trainer.py --run ahead unix:/tmp/own.sock

Workers and a supervisor are needed as for `trainer_loop.py`; the server is this run's alone, since its weights change. Each step comes as
batches for two ranks, which here are one after the other in this process: the first holds the run, the second has a reader and the manifest
that it would be sent (`torch.distributed.broadcast_object_list`). What an older policy sampled is weighed by a truncated ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

import numpy as np

from pipeline.engines import Exchange
from pipeline.errors import RollstreamError
from trainer_client import GRPO, Batch, Manifest, Run, Step, StepRequest, connect, connect_reader

PROBLEMS = Path(__file__).resolve().parents[1] / "workers/handlers/math/problems/arithmetic.jsonl"
RANKS = 2
RATIO_CAP = 2.0
"""Truncated importance sampling: a token's ratio counts at most so much (Yao et al. 2025, "Your efficient RL framework secretly brings you
off-policy RL training")."""


async def main(options: argparse.Namespace) -> None:
    request = StepRequest(task="math", groups=options.groups, n=4, max_staleness=2, ahead=2)
    async with connect(run=options.run) as run, connect_reader() as reader:
        await run.servers.attach(options.servers, control="trainer")
        await update(run, (run.next_step or 1) - 1)
        run.feed(read_problems(), epochs=10, shuffle_seed=7)
        async for step in run.steps(request, count=options.steps, timeout_s=options.timeout, progress=True):
            sent = (await step.manifest()).to_bytes()
            how = {"advantage": GRPO(std=False), "rows": 4}
            shares = [
                await step.batch(shard=(0, RANKS), **how),  # type: ignore[arg-type]  # the same arguments on every rank
                await reader.batch(Manifest.from_bytes(sent), shard=(1, RANKS), **how),  # type: ignore[arg-type]
            ]
            print(told(step, [loss_of(share) for share in shares], shares), flush=True)
            await update(run, step.index)  # the steps ahead go on with it: calls in flight keep what they have sampled
            await step.ack()


def loss_of(share: Batch) -> float:
    """The part of the step's loss that one rank has; the sum over ranks is the loss, whoever got how much."""
    loss = 0.0
    for arrays in share.microbatches():  # equally many on every rank, so each would call the same collectives
        logprobs = arrays.behaviour_logprobs - 0.01  # what the policy in training gives; here next to what was sampled
        ratio = np.minimum(np.exp(logprobs - arrays.behaviour_logprobs), RATIO_CAP)
        loss -= float((ratio * arrays.advantages * arrays.weights).sum())
    return loss


def told(step: Step, losses: list[float], shares: list[Batch]) -> str:
    numbers = step.metrics
    ages = " ".join(f"{age}:{numbers[f'staleness_{age}']:.0f}" for age in (0, 1, 2, "older"))
    tokens = sum(sum(len(row.token_ids) for row in rows) for share in shares for rows in share.rows)
    return (
        f"step {step.index}: loss {sum(losses):+.4f} on {shares[0].step_loss_tokens} tokens of {tokens}, "
        f"{shares[0].n_microbatches} microbatches on each of {RANKS} ranks, groups by age {ages}, waited {numbers['trainer_wait_s']:.1f} s"
    )


async def update(run: Run, number: int) -> None:
    """Loads weights, here a name that the scripted server takes for a path, into all servers of the run."""
    async with run.weight_update(number) as servers:
        for server in servers:
            async with Exchange(server.url) as http:
                await http.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": f"{run.id}-{number}"}})


def read_problems() -> list[dict[str, object]]:
    """Rows of a JSON-lines file; the first line describes the file."""
    return [json.loads(line) for line in PROBLEMS.read_text(encoding="utf-8").splitlines()[1:]]


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train two steps behind the rollouts, in batches for two ranks.")
    parser.add_argument("servers", nargs="+", metavar="ADDRESS", help="http://host:port or unix:/path.sock; this run's alone")
    parser.add_argument("--run", default="ahead", help="id of the run (ahead)")
    parser.add_argument("--steps", type=int, default=4, help="how many steps (4)")
    parser.add_argument("--groups", type=int, default=2, help="groups a step (2)")
    parser.add_argument("--timeout", type=float, default=120.0, help="longest wait for one step, in seconds (120)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        asyncio.run(main(parse(sys.argv[1:])))
    except RollstreamError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; what was asked for goes on, and is here next time")
