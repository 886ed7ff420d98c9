"""A trainer that gives its servers new weights after each step, while their jobs go on.

    python -m workers.llm.scripted --socket /tmp/own.sock --problems workers/handlers/math/problems/arithmetic.jsonl
    python examples/weight_update.py --run updated unix:/tmp/own.sock

Workers and a supervisor are needed as for `trainer_loop.py`; the server is this run's alone, since its weights change. Here weights have no
more than a name, which the scripted server takes for the path that a real one would read (`reload_weights`); its logprobs follow from it.
With `--away` the engines are away while the trainer trains, as those that share its accelerators are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from pipeline.engines import Exchange
from pipeline.errors import RollstreamError
from trainer_client import LimitsRequest, Run, ServersToLoad, Step, StepRequest, connect

PROBLEMS = Path(__file__).resolve().parents[1] / "workers/handlers/math/problems/arithmetic.jsonl"


async def main(options: argparse.Namespace) -> None:
    request = StepRequest(task="math", groups=options.groups, n=options.n, max_staleness=1, limits=LimitsRequest(max_turns=4))
    async with connect(run=options.run) as run:
        await run.servers.attach(options.servers, control="trainer")  # no call goes there before they hold our policy
        first = run.next_step or 1
        await update(run, first - 1, options.mode)
        run.feed(read_problems(options.problems), epochs=options.epochs, shuffle_seed=7)
        async for step in run.steps(request, count=options.steps, timeout_s=options.timeout):
            async with AsyncExitStack() as stack:
                if options.away:
                    await stack.enter_async_context(run.engines_away())
                await train(step)
                await update(run, step.index, options.mode)  # in the absence, if there is one
            await step.ack()


async def update(run: Run, number: int, mode: str) -> None:
    """Loads the weights of a version into all servers of the run."""
    async with run.weight_update(number, mode=mode) as servers:  # type: ignore[arg-type]  # argparse has looked at the word
        await asyncio.gather(*(push(servers, server.url, f"{run.id}-weights-{number}") for server in servers))
    for url, why in servers.failed.items():
        print(f"{url} has no weights and gets no jobs until the next update: {why}", flush=True)
    updated = [server for server in servers if server.url not in servers.failed]
    print(f"version {servers.version} on {len(updated)} servers", flush=True)


async def push(servers: ServersToLoad, url: str, weights: str) -> None:
    """Brings weights to one server. A server that does not take them is out of this update; the others are not."""
    try:
        async with Exchange(url) as http:
            await http.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": weights}})
    except RollstreamError as error:
        servers.fail(url, str(error))


async def train(step: Step) -> None:
    """Where the optimizer would step; here it counts which version sampled how many tokens."""
    versions: Counter[str] = Counter()
    for group in step.groups:
        for trajectory in await group.trajectories():
            for segment in trajectory.segments:
                for span in segment.versions:
                    versions[span.version] += int(segment.sampled_mask[span.start : span.end].sum())
    print(f"step {step.index}: tokens by version {dict(sorted(versions.items()))}", flush=True)


def read_problems(path: Path) -> list[dict[str, object]]:
    """Rows of a JSON-lines file; a first line that describes the file is left out."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [row for row in rows if "question" in row]


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Take some steps, and update the weights after each.")
    parser.add_argument("servers", nargs="+", metavar="ADDRESS", help="http://host:port or unix:/path.sock; this run's alone")
    parser.add_argument("--run", default="updated", help="id of the run (updated)")
    parser.add_argument("--steps", type=int, default=2, help="how many steps (2)")
    parser.add_argument("--groups", type=int, default=2, help="groups a step (2)")
    parser.add_argument("--n", type=int, default=4, help="rollouts a group (4)")
    parser.add_argument("--epochs", type=int, default=10, help="how often the problems are fed (10)")
    parser.add_argument("--mode", choices=("keep", "abort", "wait"), default="keep", help="what happens to calls in flight (keep)")
    parser.add_argument("--away", action="store_true", help="engines are away while the trainer trains")
    parser.add_argument("--problems", type=Path, default=PROBLEMS, help="JSON lines with `question` and `answer`")
    parser.add_argument("--timeout", type=float, default=120.0, help="longest wait for one step, in seconds (120)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        asyncio.run(main(parse(sys.argv[1:])))
    except RollstreamError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; the next trainer of this run loads the servers again")
