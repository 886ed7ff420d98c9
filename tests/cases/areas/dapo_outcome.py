"""What a dapo case came to, and where that differs from what it expects."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.loss_policy import Loss
from tests.cases.case import BadCase, Difference, Json

REASONS: Mapping[Verdict, tuple[str, ...]] = {
    Verdict.FILTERED: ("no_signal", "filtered"),
    Verdict.DROPPED: ("too_few_survivors", "failed", "dropped"),
    Verdict.DEAD: ("too_few_survivors", "failed", "dropped"),
    Verdict.STALE: ("stale",),
    Verdict.SURPLUS: ("surplus", "discarded"),
    Verdict.CANCELLED: ("cancelled",),
}
"""How a case may call what became of a group that was not trained on."""


@dataclass
class TrainedGroup:
    """A group as the trainer had it."""

    name: str
    rows: list[int]
    rewards: list[float]
    losses: list[Loss]
    is_stale: bool

    @property
    def centered(self) -> list[float]:
        """Rewards less their mean."""
        mean = math.fsum(self.rewards) / len(self.rewards)
        return [round(reward - mean, 4) for reward in self.rewards]


@dataclass
class Batch:
    """A step as the trainer had it."""

    groups: list[TrainedGroup]
    is_short: bool

    @property
    def names(self) -> list[str]:
        return [group.name for group in self.groups]


@dataclass
class DapoOutcome:
    """All that a case can look at."""

    batches: list[Batch] = field(default_factory=list)
    verdicts: dict[str, tuple[Verdict, str]] = field(default_factory=dict)
    """Group -> its first verdict and why."""
    cancelled: list[tuple[str, int]] = field(default_factory=list)
    """Members that ended as cancelled."""
    reported: set[str] = field(default_factory=set)
    redispatched: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    new_groups: int | None = None
    prompts_ended: bool = False
    worker_alive: bool = False
    error: str = ""
    seconds: float = 0.0
    unmet: list[Difference] = field(default_factory=list)
    """What an event expected there and then."""

    def trained(self, name: str) -> TrainedGroup | None:
        return next((group for batch in self.batches for group in batch.groups if group.name == name), None)

    @property
    def reasons(self) -> dict[str, tuple[str, ...]]:
        """Group that was dropped -> names for why."""
        found = {}
        for name, (verdict, why) in self.verdicts.items():
            if verdict is not Verdict.INFORMATIVE:
                late = ("group_timeout",) if "expired" in why else ()
                found[name] = REASONS[verdict] + late
        return found


Compare = Callable[[Any, DapoOutcome], object]
"""What was found, given what is expected (of any JSON shape)."""


def _per_group(read: Callable[[TrainedGroup], list[Any]]) -> Compare:
    def compare(expected: Mapping[str, object], outcome: DapoOutcome) -> object:
        found = {name: outcome.trained(name) for name in expected}
        return {name: group and read(group) for name, group in found.items()}

    return compare


def _dropped(expected: Mapping[str, str], outcome: DapoOutcome) -> object:
    """The reasons in the words of the case; a group that only the target cancelled was not dropped."""
    dropped = {name: names for name, names in outcome.reasons.items() if names != REASONS[Verdict.CANCELLED] or name in expected}
    return {name: expected[name] if expected.get(name) in names else names[0] for name, names in dropped.items()}


def _dropped_any_of(expected: Mapping[str, list[str]], outcome: DapoOutcome) -> object:
    reasons = outcome.reasons
    return {
        name: allowed if set(allowed) & set(reasons.get(name, ())) else list(reasons.get(name, ())) for name, allowed in expected.items()
    }


def _batches(expected: list[list[str]], outcome: DapoOutcome) -> object:
    """In the order of the case where a batch has the same groups."""
    found = [batch.names for batch in outcome.batches]
    return [want if sorted(want) == sorted(names) else names for want, names in zip(expected, found, strict=False)] + found[len(expected) :]


def _all_any_order(expected: list[list[str]], outcome: DapoOutcome) -> object:
    found = sorted(name for batch in outcome.batches for name in batch.names)
    return expected if found == sorted(name for names in expected for name in names) else [found]


def _members(expected: list[list[object]], outcome: DapoOutcome) -> object:
    found = [[name, member] for name, member in sorted(outcome.cancelled)]
    return expected if found == sorted(expected, key=str) else found


def _masked(group: TrainedGroup) -> list[int]:
    return [row for row, loss in zip(group.rows, group.losses, strict=True) if loss is Loss.MASK]


COMPARES: Mapping[str, Compare] = {
    "batches": _batches,
    "batch_sizes": lambda _, outcome: [len(batch.groups) for batch in outcome.batches],
    "all_batches_any_order": _all_any_order,
    "each_group_at_most_once": lambda _, outcome: len(names := [n for b in outcome.batches for n in b.names]) == len(set(names)),
    "dropped": _dropped,
    "dropped_any_of": _dropped_any_of,
    "rewards": _per_group(lambda group: group.rewards),
    "group_rows": _per_group(lambda group: group.rows),
    "advantage_centered": _per_group(lambda group: group.centered),
    "masked_rows": _per_group(_masked),
    "stale_marked": lambda _, outcome: sorted(group.name for batch in outcome.batches for group in batch.groups if group.is_stale),
    "loss_denominator_rows": lambda _, outcome: sum(
        loss is Loss.TRAIN for batch in outcome.batches for group in batch.groups for loss in group.losses
    ),
    "nan_in_batch": lambda _, outcome: any(math.isnan(r) for batch in outcome.batches for group in batch.groups for r in group.rewards),
    "cancelled": _members,
    "not_cancelled_groups": lambda expected, outcome: [name for name in expected if name not in {group for group, _ in outcome.cancelled}],
    "redispatched_once": lambda _, outcome: outcome.redispatched,
    "lost": lambda _, outcome: outcome.lost,
    "error": lambda _, outcome: bool(outcome.error),
    "short": lambda _, outcome: any(batch.is_short for batch in outcome.batches),
    "state": lambda _, outcome: "data_exhausted" if outcome.prompts_ended else "open",
    "worker_alive": lambda _, outcome: outcome.worker_alive,
    "max_s": lambda expected, outcome: expected if outcome.seconds <= expected else round(outcome.seconds, 1),
    "new_groups": lambda _, outcome: outcome.new_groups,
    "new_groups_max": lambda expected, outcome: (
        expected if outcome.new_groups is not None and outcome.new_groups <= expected else outcome.new_groups
    ),
    "new_groups_min": lambda expected, outcome: (
        expected if outcome.new_groups is not None and outcome.new_groups >= expected else outcome.new_groups
    ),
    "reported_any_of": lambda expected, outcome: expected if outcome.reported & set(expected) else sorted(outcome.reported),
}
"""What can be expected -> what was found, in the words of the case where they agree."""


def differences(expect: Json, outcome: DapoOutcome) -> list[Difference]:
    """Where the outcome is another than expected."""
    found = list(outcome.unmet)
    if outcome.error and "error" not in expect:
        found.append(Difference("no error", "a run without one", outcome.error))
    for what, expected in expect.items():
        if what == "any_of":
            tries = [differences({**expect, **one, "any_of": []}, outcome) for one in expected]
            if expected and all(tries):
                found.append(Difference("one of", expected, [str(difference) for difference in tries[0]]))
        elif what not in COMPARES:
            raise BadCase(f"nothing is known of the expectation {what!r}")
        elif (came := COMPARES[what](expected, outcome)) != expected:
            found.append(Difference(what, expected, came))
    return found
