"""The numbers of a step that its members bring: rewards by component, lengths, how they stopped, tools, waits, failures.

All from records. A figure of nothing is 0, so that every step has the same names; only components of rewards bring names of their own.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pipeline.messages import JobResult, Outcome, StopReason, TrajectoryCounts
from pipeline.supervisor.actions import Verdict
from trainer_client.records import STAGES, GroupRecord

TRAINED_OR_FILTERED = (Verdict.INFORMATIVE, Verdict.FILTERED)
BOUNDARIES = ("sandbox", "model", "grader", "service", "broker", "stage", "handler", "body")
"""Where infrastructure fails (`messages.Failure.boundary`)."""
CAUSES = (*BOUNDARIES, "lost", "reward", "other")
AGES = 4
"""Ages of groups that are counted one by one; older ones together."""


def reward_metrics(counted: Sequence[GroupRecord], trained: Sequence[GroupRecord]) -> dict[str, float]:
    """`reward_<component>_mean` over members of trained groups and `..._mean_all` over those of trained and filtered ones; groups of
    which all members scored at least 1 (`groups_solved_all`), or none above 0 (`groups_solved_none`), among the latter."""
    judged = [group for group in counted if group.verdict in TRAINED_OR_FILTERED]
    numbers: dict[str, float] = {}
    for name in sorted({name for group in judged for name in group.components}):
        numbers[f"reward_{name}_mean"] = mean(_values(trained, name))
        numbers[f"reward_{name}_mean_all"] = mean(_values(judged, name))
    scores = [list(_values([group], "score")) for group in judged]
    numbers["groups_solved_all"] = float(sum(bool(of) and min(of) >= 1.0 for of in scores))
    numbers["groups_solved_none"] = float(sum(bool(of) and max(of) <= 0.0 for of in scores))
    return numbers


def trained_metrics(members: Sequence[JobResult]) -> dict[str, float]:
    """Of members of trained groups that count: `turns_*`, `sampled_tokens_*` and `total_tokens_*` (mean, p50, p95, max), `segments_*`,
    `neg_logprob_mean` (nats a sampled token), `stop_<reason>_share`, `tool_calls_mean`, `tool_errors_share` (of calls),
    `prefix_hits_share` (of prompt tokens of all model calls), `wait_<stage>_s_mean` and `_p95`, `seconds_<stage>_*`."""
    counts = [member.counts or TrajectoryCounts() for member in members]
    numbers: dict[str, float] = {}
    for name, values in (
        ("turns", [float(member.turns) for member in members]),
        ("sampled_tokens", [float(member.sampled_tokens) for member in members]),
        ("total_tokens", [float(member.total_tokens) for member in members]),
    ):
        numbers |= {f"{name}_mean": mean(values), f"{name}_p50": quantile(values, 0.5), f"{name}_p95": quantile(values, 0.95)}
        numbers[f"{name}_max"] = max(values, default=0.0)
    known = [
        (count.neg_logprob, member.sampled_tokens) for count, member in zip(counts, members, strict=True) if count.neg_logprob is not None
    ]
    numbers["neg_logprob_mean"] = ratio(sum(nats for nats, _ in known), sum(tokens for _, tokens in known))
    segments = [float(len(member.segments)) for member in members if member.segments]
    numbers |= {"segments_mean": mean(segments), "segments_max": max(segments, default=0.0)}
    stops = Counter(member.stop for member in members)
    numbers |= {f"stop_{reason.value}_share": ratio(stops[reason.value], len(members)) for reason in StopReason}
    calls = sum(count.tool_calls for count in counts)
    numbers |= {
        "tool_calls_mean": ratio(calls, len(members)),
        "tool_errors_share": ratio(sum(count.tool_errors for count in counts), calls),
    }
    prompts = sum(count.prompt_tokens or 0 for count in counts)
    numbers["prefix_hits_share"] = ratio(sum(count.cached_tokens or 0 for count in counts), prompts)
    for stage in STAGES:
        waits = [member.waits[stage] for member in members if stage in member.waits]
        numbers |= {f"wait_{stage}_s_mean": mean(waits), f"wait_{stage}_s_p95": quantile(waits, 0.95)}
    for stage in (*STAGES, "total"):
        seconds = [member.seconds.get(stage, 0.0) for member in members]
        numbers |= {f"seconds_{stage}_mean": mean(seconds), f"seconds_{stage}_p95": quantile(seconds, 0.95)}
    return numbers


def outside_metrics(members: Mapping[str, Sequence[JobResult]], trained: Sequence[JobResult]) -> dict[str, float]:
    """Of members of all groups that are accounted to the step: `members_retried` (more attempts than stages), `infra_failures` and
    `infra_failures_<cause>`, `members_cancelled` with `cancelled_tokens_mean` (what those that sampled anything had when they were cut)
    and `cancelled_to_trained_length`, that over the mean length of trained ones.

    Args:
        members: results by group.
        trained: members of trained groups that count.
    """
    everyone = [member for group in members.values() for member in group]
    failures = Counter(cause_of(member.reason) for member in everyone if member.outcome is Outcome.INFRA_FAILURE)
    cancelled = [member for member in everyone if member.outcome is Outcome.CANCELLED]
    lengths = [float(member.spent_tokens) for member in cancelled if member.spent_tokens]
    numbers = {
        "members_retried": float(sum(member.attempt > max(1, len(member.waits)) for member in everyone)),
        "infra_failures": float(failures.total()),
        "members_cancelled": float(len(cancelled)),
        "cancelled_tokens_mean": mean(lengths),
        "cancelled_to_trained_length": ratio(mean(lengths), mean(member.sampled_tokens for member in trained)),
    }
    return numbers | {f"infra_failures_{cause}": float(failures[cause]) for cause in CAUSES}


def age_metrics(staleness: Sequence[int | None]) -> dict[str, float]:
    """Trained groups by updates between their oldest version and the one they are trained with: `staleness_<n>` for each below `AGES`,
    `staleness_older`, `staleness_unknown`; `staleness_mean` and `staleness_max` of known ones."""
    known = [age for age in staleness if age is not None]
    ages = Counter(known)
    numbers = {f"staleness_{age}": float(ages[age]) for age in range(AGES)}
    return numbers | {
        "staleness_older": float(sum(age >= AGES for age in known)),
        "staleness_unknown": float(len(staleness) - len(known)),
        "staleness_mean": mean(known),
        "staleness_max": float(max(known, default=0)),
    }


def cause_of(reason: str) -> str:
    """What broke, out of the reason that a record has: one of `CAUSES`."""
    boundary = reason.partition(":")[0]
    if boundary in BOUNDARIES:
        return boundary
    return "lost" if reason.startswith("lost ") else "reward" if reason.startswith("reward_missing") else "other"


def mean(values: Iterable[float]) -> float:
    """Mean, 0 of nothing: a metric has a value in every step."""
    found = list(values)
    return statistics.fmean(found) if found else 0.0


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of values is not above, 0 of nothing."""
    found = sorted(values)
    return found[min(len(found) - 1, int(share * len(found)))] if found else 0.0


def ratio(part: float, whole: float) -> float:
    """0 of nothing."""
    return part / whole if whole else 0.0


def _values(groups: Iterable[GroupRecord], component: str) -> Iterable[float]:
    for group in groups:
        values = group.components.get(component) or (group.values if component == "score" else ())
        yield from (value for value in values if value is not None)


__all__ = ["CAUSES", "age_metrics", "cause_of", "mean", "outside_metrics", "quantile", "ratio", "reward_metrics", "trained_metrics"]
