"""Whether a run trains on what its policy writes, and whether its fleet has work: rules over figures that are counted elsewhere.

No Redis, no clock. Why these formulas and thresholds: `docs/adr/0009-accounting-and-monitors.md`.

Length bias, over the last closed groups of a run: *trained* members, *judged* members (of all groups with a verdict on their rewards),
and *sampled*, an estimate of what the policy writes in which a cancelled member says only that it is at least as long as what it had.
Judged over sampled is what cancelling took, and must be 1; trained over judged is what the filter wants.

Lengths are sampled tokens. Legend: `S(x)` share of sampled lengths above x.
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pipeline.supervisor.actions import Verdict

WINDOW_MEMBERS = 8192
"""Members that the window holds: some four hundred in its longest twentieth. One line of it is about six bytes a member."""
FEWEST_GROUPS, MOST_GROUPS = 32, 512
"""Bounds of the window in groups: large groups still leave some, small ones are read in one go."""
FEWEST_MEMBERS = 200
"""Judged members below which nothing is said: ten of them are the longest twentieth."""
MEAN_OFF, TAIL_OFF = 0.05, 0.20
"""How far mean and share of the longest twentieth may be off. Promise 12 says 3 % and 10 % of a whole run; a window is a part of it."""
STANDARD_ERRORS = 3.0
"""And by how many standard errors: what chance does once in some hundred windows is no warning."""
TAIL = 0.05
STARVED = 0.10
"""Share of a step in which too little was at work that is worth a warning: more than all that cancelling costs."""

JUDGED = frozenset((Verdict.INFORMATIVE, Verdict.FILTERED, Verdict.SURPLUS, Verdict.STALE))
TRAINED = Verdict.INFORMATIVE


class Health(StrEnum):
    """What a monitor says."""

    OK = "ok"
    WARN = "warn"
    UNKNOWN = "unknown"
    """Too little was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowGroup:
    """A closed group as the window remembers it."""

    verdict: str
    prompt: str
    age_s: float
    """From launch to verdict."""
    age_versions: int | None
    """Versions between its oldest token and the run's at the verdict; None = not known."""
    ended: tuple[int, ...]
    """Lengths of members that ended by themselves."""
    cut: tuple[int, ...]
    """What members had when they were cancelled, expired or broke: their length is at least that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBias:
    """Trained against judged against sampled. A ratio is 0 where there is nothing to compare."""

    groups: int
    """Closed groups in the window."""
    trained_members: int
    judged_members: int
    cut_members: int
    trained_mean: float
    judged_mean: float
    sampled_mean: float
    """A lower bound where the longest members were cut."""
    tail_length: int
    """The 95th percentile of sampled lengths; members at least as long are the longest."""
    filter_ratio: float
    """Mean trained over mean judged."""
    filter_tail: float
    """Share of the longest among trained members over that among judged ones."""
    cut_ratio: float
    """Mean judged over mean sampled."""
    cut_tail: float
    """Share of the longest among judged members over that of sampled."""
    trained_age_s: float
    judged_age_s: float
    trained_age_versions: float
    judged_age_versions: float
    health: Health
    warnings: tuple[str, ...] = ()
    """Sentences for people."""

    def figures(self) -> dict[str, float]:
        """Flat numbers, the same names in metrics, step records and statistics."""
        return {
            "length_trained_mean": self.trained_mean,
            "length_judged_mean": self.judged_mean,
            "length_sampled_mean": self.sampled_mean,
            "length_filter_ratio": self.filter_ratio,
            "length_filter_tail": self.filter_tail,
            "length_cut_ratio": self.cut_ratio,
            "length_cut_tail": self.cut_tail,
            "age_s_trained": self.trained_age_s,
            "age_s_judged": self.judged_age_s,
            "age_versions_trained": self.trained_age_versions,
            "age_versions_judged": self.judged_age_versions,
            "length_window_groups": float(self.groups),
            "length_warn": float(self.health is Health.WARN),
        }


LENGTH_FIGURES = tuple(
    LengthBias(
        groups=0,
        trained_members=0,
        judged_members=0,
        cut_members=0,
        trained_mean=0.0,
        judged_mean=0.0,
        sampled_mean=0.0,
        tail_length=0,
        filter_ratio=0.0,
        filter_tail=0.0,
        cut_ratio=0.0,
        cut_tail=0.0,
        trained_age_s=0.0,
        judged_age_s=0.0,
        trained_age_versions=0.0,
        judged_age_versions=0.0,
        health=Health.UNKNOWN,
    ).figures()
)
"""Names of these numbers."""


def lengths_text(ended: Iterable[int], cut: Iterable[int]) -> str:
    """Lengths of a group's members as they stand in its line of the window."""
    return ",".join([*map(str, ended), *(f"c{length}" for length in cut)])


def parse_line(line: str) -> WindowGroup:
    """One line of the window, as `account_groups.lua` writes it: verdict, prompt, age in ms, age in versions, lengths.

    Raises:
        ValueError: no line of ours.
    """
    fields = line.split("|")
    if len(fields) < 5:
        raise ValueError(f"a line of the window has {len(fields)} fields: {line[:80]!r}")
    verdict, prompt, age_ms, age_versions, lengths = fields[:5]
    words = lengths.split(",") if lengths else []
    return WindowGroup(
        verdict=verdict,
        prompt=prompt,
        age_s=int(age_ms) / 1000,
        age_versions=int(age_versions) if age_versions else None,
        ended=tuple(int(word) for word in words if not word.startswith("c")),
        cut=tuple(int(word[1:]) for word in words if word.startswith("c")),
    )


def read_window(lines: Iterable[bytes]) -> list[WindowGroup]:
    """The lines of a window, without those that another version wrote in another way: figures are never in the way of a step."""
    groups = []
    for line in lines:
        with contextlib.suppress(ValueError):
            groups.append(parse_line(line.decode("utf-8", "replace")))
    return groups


def length_bias(window: Sequence[WindowGroup]) -> LengthBias:
    """What the window says about lengths and ages."""
    judged = [group for group in window if group.verdict in JUDGED]
    trained = [group for group in judged if group.verdict == TRAINED]
    curve = _product_limit(window)
    tail_length, sampled_tail = curve.longest_twentieth()
    means = {name: _mean(length for group in groups for length in group.ended) for name, groups in (("t", trained), ("j", judged))}
    tails = {
        name: _mean(float(length >= tail_length) for group in groups for length in group.ended)
        for name, groups in (("t", trained), ("j", judged))
    }
    judged_members = sum(len(group.ended) for group in judged)
    health, warnings = Health.UNKNOWN, list[str]()
    if judged_members >= FEWEST_MEMBERS and curve.mean > 0 and sampled_tail > 0:
        warnings = _warnings(judged, curve.mean, tail_length, sampled_tail)
        health = Health.WARN if warnings else Health.OK
    return LengthBias(
        groups=len(window),
        trained_members=sum(len(group.ended) for group in trained),
        judged_members=judged_members,
        cut_members=sum(len(group.cut) for group in window),
        trained_mean=means["t"],
        judged_mean=means["j"],
        sampled_mean=curve.mean,
        tail_length=tail_length,
        filter_ratio=_ratio(means["t"], means["j"]),
        filter_tail=_ratio(tails["t"], tails["j"]),
        cut_ratio=_ratio(means["j"], curve.mean),
        cut_tail=_ratio(tails["j"], sampled_tail),
        trained_age_s=_mean(group.age_s for group in trained),
        judged_age_s=_mean(group.age_s for group in judged),
        trained_age_versions=_mean(group.age_versions for group in trained if group.age_versions is not None),
        judged_age_versions=_mean(group.age_versions for group in judged if group.age_versions is not None),
        health=health,
        warnings=tuple(warnings),
    )


def _warnings(judged: Sequence[WindowGroup], sampled_mean: float, tail_length: int, sampled_tail: float) -> list[str]:
    found = []
    mean, error = _clustered([[float(length) for length in group.ended] for group in judged])
    if abs(mean / sampled_mean - 1) > MEAN_OFF and abs(mean - sampled_mean) > STANDARD_ERRORS * error:
        found.append(
            f"members that count are {mean / sampled_mean:.2f} times as long as what is sampled ({mean:.0f} of {sampled_mean:.0f} tokens): "
            "cancels select by length"
        )
    share, error = _clustered([[float(length >= tail_length) for length in group.ended] for group in judged])
    if abs(share / sampled_tail - 1) > TAIL_OFF and abs(share - sampled_tail) > STANDARD_ERRORS * error:
        found.append(
            f"members of {tail_length:,} tokens and more are {share:.1%} of those that count and {sampled_tail:.1%} of what is sampled: "
            "cancels select by length"
        )
    return found


@dataclass(frozen=True, slots=True)
class _Curve:
    """`S(x)` at each length at which some member ended, ascending; it falls to S right after that length."""

    lengths: Sequence[int]
    left: Sequence[float]
    mean: float

    def longest_twentieth(self) -> tuple[int, float]:
        """The 95th percentile, and the share that is at least as long; of nothing (0, 0)."""
        if not self.lengths:
            return 0, 0.0
        at = next((i for i, share in enumerate(self.left) if share <= TAIL + 1e-9), len(self.left) - 1)
        return self.lengths[at], self.left[at - 1] if at else 1.0


def _product_limit(window: Sequence[WindowGroup]) -> _Curve:
    """The product-limit estimate over all members, each draw of a prompt weighted by one over its draws in the window."""
    draws = Counter(group.prompt for group in window)
    ended: Counter[int] = Counter()
    cut: Counter[int] = Counter()
    for group in window:
        weight = 1 / draws[group.prompt]
        for length in group.ended:
            ended[length] += weight  # type: ignore[assignment]  # Counter is typed for whole numbers only
        for length in group.cut:
            cut[length] += weight  # type: ignore[assignment]
    lengths, left, share, before, area = sorted(ended), list[float](), 1.0, 0, 0.0
    cuts = sorted(cut)
    at_risk, passed = float(sum(ended.values()) + sum(cut.values())), 0
    for length in lengths:
        until = bisect_left(cuts, length)
        at_risk -= sum(cut[value] for value in cuts[passed:until])
        passed = until
        area += share * (length - before)
        share = max(0.0, share * (1 - ended[length] / at_risk))
        at_risk -= ended[length]
        before = length
        left.append(share if share > 1e-9 else 0.0)
    longest = max([before, *cuts[-1:]])
    return _Curve(lengths, left, area + (left[-1] if left else 0.0) * (longest - before))


def _clustered(values_a_group: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mean over all values and its standard error; members of a group share a prompt, so groups are the unit."""
    count = sum(map(len, values_a_group))
    mean = math.fsum(value for values in values_a_group for value in values) / max(1, count)
    squares = math.fsum((math.fsum(values) - mean * len(values)) ** 2 for values in values_a_group)
    return mean, math.sqrt(squares) / max(1, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Starvation:
    """In how much of a step too little was at work, and why."""

    watched_s: float
    """The time in which the step was the oldest open one."""
    short_s: Mapping[str, float]
    """Seconds by reason (`Shortage`); only those that occurred."""

    @property
    def share(self) -> float:
        """Of the step's time."""
        return min(1.0, math.fsum(self.short_s.values()) / self.watched_s) if self.watched_s > 0 else 0.0

    @property
    def health(self) -> Health:
        if self.watched_s <= 0:
            return Health.UNKNOWN
        return Health.WARN if self.share > STARVED else Health.OK

    def figures(self) -> dict[str, float]:
        """Flat numbers, without those of single reasons."""
        return {"starved_share": self.share, "starved_warn": float(self.health is Health.WARN)}


def read_starvation(found: Mapping[str, str], *, watched_ms: int) -> Starvation:
    """From the fields `short.<reason>` of a step's hash or record."""
    prefix = "short."
    counts = {name.removeprefix(prefix): int(value or 0) for name, value in found.items() if name.startswith(prefix)}
    return Starvation(watched_s=watched_ms / 1000, short_s={why: ms / 1000 for why, ms in counts.items() if ms})


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found) if found else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
