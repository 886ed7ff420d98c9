"""What a report is made of, and what is computed of it. No Redis, no clock, no HTML."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ops.run_report import RunReport
from pipeline.supervisor.actions import Verdict

STAGES = ("init", "run", "eval")
JUDGED = frozenset((Verdict.INFORMATIVE.value, Verdict.FILTERED.value, Verdict.SURPLUS.value, Verdict.STALE.value))
POINTS = 120
"""Most points of a chart over time: more cannot be told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """A job that ended."""

    entry: str
    outcome: str
    reason: str
    reward: float | None
    seconds: Mapping[str, float]
    """By stage, and `total`."""
    waits: Mapping[str, float]
    sampled_tokens: int

    @property
    def ended_s(self) -> float:
        """By the clock of Redis."""
        return int(self.entry.partition("-")[0]) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A group that got its verdict."""

    group: str
    verdict: str
    step: int | None
    mean: float | None
    """Of the component that the filter looks at, over valid members."""
    valid: int
    sampled_tokens: int
    closed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """A step that was reached."""

    index: int
    accepted: int
    target: int
    is_short: bool
    counts: Mapping[str, int]
    """Groups by verdict, without those that joined."""
    tokens: Mapping[str, int]
    took_s: float | None
    starved_share: float
    cancel_settled_s: float | None

    @property
    def filtered_share(self) -> float | None:
        """Filtered groups among those whose rewards were judged."""
        filtered = self.counts.get("filtered", 0)
        judged = filtered + self.accepted
        return filtered / judged if judged else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """One run at one moment."""

    now_s: float
    report: RunReport
    steps: tuple[StepFacts, ...]
    groups: tuple[GroupFacts, ...]
    jobs: tuple[JobFacts, ...]
    export: str = ""
    """Folder that some of it is from; empty = Redis alone."""
    jobs_counted: Mapping[str, int] = field(default_factory=dict)
    """All that ever ended, by outcome, as the run counted them."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in a few numbers, seconds."""

    count: int
    p50: float
    p90: float
    p99: float
    most: float


def spread(values: Iterable[float]) -> Spread | None:
    """Nearest-rank percentiles; None of nothing."""
    ordered = sorted(value for value in values if math.isfinite(value))
    if not ordered:
        return None

    def rank(share: float) -> float:
        return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]

    return Spread(len(ordered), rank(0.5), rank(0.9), rank(0.99), ordered[-1])


def latencies(jobs: Sequence[JobFacts]) -> dict[str, Spread]:
    """Waits before and times in each stage, of jobs that came to an end with a trajectory or a verdict; in the order of a job's life."""
    done = [job for job in jobs if job.outcome in ("ok", "model_failure")]
    found: dict[str, Spread | None] = {}
    for stage in STAGES:
        found[f"wait for {stage.upper()}"] = spread(job.waits[stage] for job in done if job.waits.get(stage) is not None)
        found[stage.upper()] = spread(job.seconds[stage] for job in done if job.seconds.get(stage) is not None)
    found["accepted to ended"] = spread(job.seconds["total"] for job in done if job.seconds.get("total") is not None)
    return {name: value for name, value in found.items() if value is not None}


def reward_by_step(groups: Sequence[GroupFacts], verdicts: frozenset[str]) -> dict[int, float]:
    """Mean reward a step, over the valid members of groups with one of some verdicts."""
    sums: dict[int, list[float]] = {}
    for group in groups:
        if group.step is not None and group.verdict in verdicts and group.mean is not None and group.valid:
            whole = sums.setdefault(group.step, [0.0, 0.0])
            whole[0] += group.mean * group.valid
            whole[1] += group.valid
    return {step: total / count for step, (total, count) in sorted(sums.items())}


def over_time(amounts: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Amounts at moments as a rate a second, in at most `POINTS` equal intervals; (middle of an interval, rate)."""
    found = sorted(amounts)
    if len(found) < 2 or found[-1][0] <= found[0][0]:
        return []
    first, last = found[0][0], found[-1][0]
    count = min(POINTS, max(2, len(found) // 4))
    width = (last - first) / count
    sums = [0.0] * count
    for moment, amount in found:
        sums[min(count - 1, int((moment - first) / width))] += amount
    return [(first + (number + 0.5) * width, amount / width) for number, amount in enumerate(sums)]


def histogram(values: Sequence[float], bins: int = 20) -> list[tuple[float, float, int]]:
    """(from, to, how many) of equal intervals; one where all values are the same."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return []
    low, high = min(finite), max(finite)
    if low == high:
        return [(low, high, len(finite))]
    width = (high - low) / bins
    counts = Counter(min(bins - 1, int((value - low) / width)) for value in finite)
    return [(low + number * width, low + (number + 1) * width, counts[number]) for number in range(bins)]


def reasons(jobs: Sequence[JobFacts], most: int = 12) -> list[tuple[str, str, int]]:
    """(outcome, reason, how many) of jobs that ended otherwise than well, the most frequent first."""
    counts = Counter((job.outcome, job.reason) for job in jobs if job.outcome != "ok")
    return [(outcome, reason, count) for (outcome, reason), count in counts.most_common(most)]


__all__ = [
    "JUDGED",
    "GroupFacts",
    "JobFacts",
    "RunFacts",
    "Spread",
    "StepFacts",
    "histogram",
    "latencies",
    "over_time",
    "reasons",
    "reward_by_step",
    "spread",
]
