"""Adaptive concurrency against fixed numbers of slots, on modelled engines by a virtual clock.

Each arm is one RUN process with so many slots, or the product's limit below 128 of them, in front of more work than it can do in the time.
The limit cannot know what fits; a fixed number that fits one engine and one length of contexts does not fit the next.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ops.bench.concurrency_engine import Engine, EngineShape
from ops.bench.concurrency_fleet import Outcome, SimFleet, SimProcess, Work
from ops.bench.report import Report
from workers.stages.concurrency import ConcurrencyLimit

SLOTS = 128
FIXED = (8, 16, 24, 32, 48, 64, 128)
SPAN_S = 1500.0
CHANGES_S = 600.0
"""When a server joins or dies."""
LOOKS_TO_SETTLE = 60
MEMORY = EngineShape(kv_tokens=60_000)
"""Its KV cache holds about 20 jobs."""
LINE = EngineShape(kv_tokens=400_000, max_running=24)
"""It runs 24 calls at a time, and has memory for more."""
MUCH = Work(groups=1500)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What an arm goes through."""

    what: str
    shapes: tuple[EngineShape, ...]
    work: Work = MUCH
    joins: EngineShape | None = None
    dies: bool = False


SCENARIOS = {
    "memory": Scenario("one engine, short of KV cache", (MEMORY,)),
    "line": Scenario("one engine, short of places", (LINE,)),
    "longer": Scenario("as memory, and turns become three times as long", (MEMORY,), Work(groups=1500, longer_from=30)),
    "joins": Scenario("as line, and a second engine after a while", (LINE,), joins=LINE),
    "dies": Scenario("two engines short of places, one dies", (LINE, LINE), dies=True),
}


@dataclass(slots=True)
class Arm:
    """One simulation."""

    outcome: Outcome
    limits: Sequence[int] = field(default_factory=list)
    """After each look."""


def simulate(scenario: Scenario, *, slots: int, adaptive: bool, aborts: bool = False, a_call: bool = False) -> Arm:
    """One process in one scenario."""
    process = SimProcess(slots, ConcurrencyLimit(1, slots) if adaptive else None, aborts=aborts, a_call=a_call)
    fleet = SimFleet([Engine(f"e{number}", shape) for number, shape in enumerate(scenario.shapes)], [process], scenario.work)

    def change(at: SimFleet) -> None:
        if abs(at.now_s - CHANGES_S) < 0.5:
            if scenario.joins is not None:
                at.add_server(Engine("late", scenario.joins))
            if scenario.dies:
                at.kill_server(at.engines[-1])

    return Arm(fleet.run(SPAN_S, change), process.history)


def swing(limits: Sequence[int]) -> float:
    """How far a limit strays from its mean, as a share of it, in 99 of 100 looks."""
    mean = statistics.fmean(limits)
    return statistics.quantiles((abs(limit - mean) / mean for limit in limits), n=100)[-1]


def steady_swing() -> float:
    """Of the limit at jobs that are alike, from a start with three times what fits, after the first minute."""
    work = Work(groups=3000, turn_tokens=100, tool_s=1.0, spread=0.3)
    return swing(simulate(Scenario("", (LINE,), work), slots=64, adaptive=True).limits[LOOKS_TO_SETTLE:])


def fairness() -> float:
    """Limits of two processes of 96 and 32 slots, in proportion to their slots: 1 = exactly. The second begins after 300 s."""
    processes = [SimProcess(96, ConcurrencyLimit(1, 96)), SimProcess(32, ConcurrencyLimit(1, 32), from_s=300.0, phase=5)]
    SimFleet([Engine("e0", LINE), Engine("e1", LINE)], processes, MUCH).run(SPAN_S)
    large, small = (statistics.fmean(process.history[-600:]) for process in processes)
    return large / small / 3


def many_processes() -> tuple[float, float]:
    """Ten processes of 32 slots at four engines: what all allow together, to one process of 320; the smallest to the largest of them."""
    one, ten = ([SimProcess(slots, ConcurrencyLimit(1, slots), phase=at) for at in range(320 // slots)] for slots in (320, 32))
    for processes in (one, ten):
        SimFleet([Engine(f"e{at}", LINE) for at in range(4)], processes, MUCH).run(SPAN_S)
    means = [statistics.fmean(process.history[-600:]) for process in ten]
    return sum(means) / statistics.fmean(one[0].history[-600:]), min(means) / max(means)


def moves_without_news() -> int:
    """Looks of the limit at which it moved while nobody saw the servers."""
    process = SimProcess(SLOTS, ConcurrencyLimit(1, SLOTS))

    def change(at: SimFleet) -> None:
        at.news = not 300.0 <= at.now_s < 600.0

    SimFleet([Engine("e0", LINE)], [process], MUCH).run(900.0, change)
    silent = process.history[306:600]  # facts are news for five seconds
    return sum(a != b for a, b in pairwise(silent))


def run(say: Callable[[str], None]) -> Report:
    """All of it; half a minute."""
    metrics: dict[str, float] = {}
    tokens_s: dict[str, float] = {}
    table = [f"  {'scenario':10s}{'arm':>12s}{'tokens/s':>10s}{'preempted':>11s}{'prefilled':>11s}{'group s':>9s}{'mean limit':>12s}"]
    for name, scenario in SCENARIOS.items():
        say(f"{name}: {scenario.what}")
        fixed = {slots: simulate(scenario, slots=slots, adaptive=False) for slots in FIXED}
        ours = simulate(scenario, slots=SLOTS, adaptive=True)
        best = max(fixed, key=lambda slots: fixed[slots].outcome.tokens_s)
        shown = {**{f"fixed {slots}": fixed[slots] for slots in sorted({8, best, SLOTS})}, "adaptive": ours}
        for arm, found in shown.items():
            out, limits = found.outcome, found.limits
            mean = f"{statistics.fmean(limits):.1f}" if limits else ""
            table.append(
                f"  {name:10s}{arm:>12s}{out.tokens_s:10.0f}{out.preemptions:11d}{out.prefilled / 1e6:10.1f}M{out.group_s:9.0f}{mean:>12s}"
            )
        tokens_s[name] = ours.outcome.tokens_s
        metrics[f"{name}_to_best_fixed_ratio"] = ours.outcome.tokens_s / fixed[best].outcome.tokens_s
        metrics[f"{name}_to_large_prefill_ratio"] = ours.outcome.prefilled / fixed[SLOTS].outcome.prefilled
        metrics[f"{name}_to_small_ratio"] = ours.outcome.tokens_s / fixed[FIXED[0]].outcome.tokens_s
    together, alike = many_processes()
    metrics |= {
        "steady_swing_ratio": steady_swing(),
        "fairness_ratio": fairness(),
        "ten_processes_to_one_ratio": together,
        "smallest_of_ten_ratio": alike,
        "moves_without_news": float(moves_without_news()),
    }
    rejected = {
        "a_call": simulate(SCENARIOS["memory"], slots=SLOTS, adaptive=True, a_call=True),
        "aborts": simulate(SCENARIOS["memory"], slots=SLOTS, adaptive=True, aborts=True),
    }
    metrics |= {f"{name}_to_ours_ratio": arm.outcome.tokens_s / tokens_s["memory"] for name, arm in rejected.items()}
    return Report(name="concurrency", metrics=metrics, bounds=BOUNDS, table=tuple(table))


BOUNDS: dict[str, tuple[str, float]] = {
    **{f"{name}_to_best_fixed_ratio": (">=", 0.85 if name == "longer" else 0.9) for name in SCENARIOS},
    "steady_swing_ratio": ("<=", 0.2),
    "smallest_of_ten_ratio": (">=", 0.6),
    "moves_without_news": ("<=", 0.0),
}
