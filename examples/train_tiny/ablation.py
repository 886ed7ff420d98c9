"""What cancelling and replenishing save, measured: the same steps of the same frozen policy, asked for in several ways.

| arm | how |
| --- | --- |
| `default` | half as many groups again as are needed are in flight; what nobody needs at the target is cancelled or carried on |
| `carry` | the same, and nothing is cancelled |
| `discard` | nothing is cancelled, and what the step has no room for is thrown away |
| `exact` | only as many groups in flight as the filter rate says are needed |

Each arm is a run of its own on the fleet. Its tokens are all that the run sampled, whatever became of them.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from examples.train_tiny.fleet import Fleet
from examples.train_tiny.problems import training_rows
from examples.train_tiny.requests import step_request
from examples.train_tiny.training import ROWS, WAIT_S
from pipeline.engines import Exchange
from pipeline.supervisor.step_spec import CancelRule, Surplus
from trainer_client import connect

ARMS: dict[str, tuple[float, CancelRule, Surplus]] = {
    "default": (1.5, CancelRule.DEFAULT, Surplus.CARRY),
    "carry": (1.5, CancelRule.CARRY, Surplus.CARRY),
    "discard": (1.5, CancelRule.CARRY, Surplus.DISCARD),
    "exact": (1.0, CancelRule.DEFAULT, Surplus.CARRY),
}
"""Over-sampling, cancel rule, surplus."""
CSV = "ablation.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """What an arm cost."""

    arm: str
    over: float
    cancel: str
    surplus: str
    steps: int
    groups: int
    """That were given to the trainer."""
    seconds_a_step: float
    tokens: int
    """That the run sampled."""
    tokens_a_group: float
    tokens_cancelled: int
    tokens_surplus: int
    rollouts: int
    """That ended, cancelled ones included."""


async def run(fleet: Fleet, supervised: Path, out: Path, *, seed: int, steps: int, say: Callable[[str], None]) -> int:
    """Runs all arms, one after the other; writes `ablation.csv`."""
    results = []
    for arm in ARMS:
        result = await _arm(fleet, supervised, arm, seed=seed, steps=steps)
        results.append(result)
        say(
            f"{arm:8s} over {result.over:.1f} · cancel {result.cancel} · surplus {result.surplus}: {result.tokens_a_group:,.0f} tokens an "
            f"accepted group, {result.seconds_a_step:.1f} s a step, {result.rollouts} rollouts for {result.groups} groups"
        )
    with (out / CSV).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(asdict(results[0])))
        writer.writeheader()
        writer.writerows(asdict(result) for result in results)
    say(f"written to {out / CSV}")
    return 0


async def _arm(fleet: Fleet, supervised: Path, arm: str, *, seed: int, steps: int) -> ArmResult:
    over, cancel, surplus = ARMS[arm]
    groups = 0
    async with connect(fleet.settings, run=f"tiny-{arm}-{seed}-{int(time.time())}") as held:
        await held.servers.attach(fleet.model_url, control="trainer")
        async with held.weight_update(0) as servers:
            for server in servers:
                async with Exchange(server.url) as http:
                    await http.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(supervised)}})
        held.feed(training_rows(seed, ROWS), epochs=10, shuffle_seed=seed)
        request = step_request(supervised, seed, over=over, cancel=cancel, surplus=surplus)
        began_s = time.monotonic()
        async for step in held.steps(request, count=steps, timeout_s=WAIT_S):
            groups += len(step.groups)
            await step.ack()
        took_s = time.monotonic() - began_s
        statistics = await held.statistics()
        await held.servers.clear()  # the next arm is another run, and a server with a policy is one run's
        await held.cancel()
    tokens = sum(statistics.tokens.values())
    return ArmResult(
        arm=arm,
        over=over,
        cancel=cancel,
        surplus=surplus,
        steps=steps,
        groups=groups,
        seconds_a_step=took_s / steps,
        tokens=tokens,
        tokens_a_group=tokens / max(1, groups),
        tokens_cancelled=statistics.tokens.get("cancelled", 0),
        tokens_surplus=statistics.tokens.get("surplus", 0),
        rollouts=sum(statistics.outcomes.values()),
    )
