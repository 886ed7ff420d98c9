"""What the rules of the ledger decide. Each action is one call of one script (`pipeline/scripts/step_calls.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Verdict(StrEnum):
    """What became of a closed group. Set once; the first one stands."""

    INFORMATIVE = "informative"
    """Its rewards differ: it joins a step and is trained on."""
    FILTERED = "filtered"
    """Its rewards do not differ: nothing to learn from. Its prompt is done with."""
    DROPPED = "dropped"
    """Too few valid members. Its prompt is drawn again."""
    CANCELLED = "cancelled"
    """It was given up while in flight. Its prompt returned whole, and the draw does not count."""
    SURPLUS = "surplus"
    """Informative, but no step will take it. Its prompt returned whole."""
    STALE = "stale"
    """Informative, but sampled by a version too old for the step that had room. Its prompt returned whole, and the draw does not count."""
    DEAD = "dead"
    """Dropped once more than its prompt may be drawn again. The prompt is done with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A closed group gets its verdict."""

    group: str
    verdict: Verdict
    why: str
    step: int | None
    """The step it joins, or is counted to; None = none is open. An informative group is then parked."""
    want: int
    valid: int
    mean: float | None
    """Of the filter's component over valid members; None = there is none."""
    spread: float | None
    rewards: tuple[float | None, ...]
    """The filter's component a member; None where it is not valid."""
    components: Mapping[str, tuple[float | None, ...]]
    """Every named part of the reward a member, and `score`, the reward itself; None where a member has none."""
    sampled: int
    """Sampled tokens of all members, over all their attempts."""
    total: int
    tokens: Mapping[str, int]
    """The same by what became of them (`token_fates.TokenFate`)."""
    ended_lengths: tuple[int, ...]
    """Sampled tokens of members that ended by themselves."""
    cut_lengths: tuple[int, ...]
    """Of the others: what they had."""
    keeps_bodies: bool
    """Its trajectories stay until the ack though nobody trains on them."""
    first_version: str = ""
    last_version: str = ""
    broken: bool = False
    """Infrastructure broke each of its members."""


class Spare(IntEnum):
    """Which of the groups that are given up are left alone, by how they stand when the script runs."""

    NONE = 0
    FINISHED = 1
    """Those with a finished member."""
    BEGUN = 2
    """Those with a member that RUN has begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """A step ends."""

    step: int
    short: bool
    """No prompt is left and nothing is in flight: it ends with what it has."""
    redundant: tuple[str, ...]
    """Groups in flight that nobody needs now, least work first."""
    spare: Spare
    """What is judged again when the script runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Prompts of the reserve become groups."""

    step: int
    """The step whose template and size they get."""
    groups: int
    bound: int
    """Groups in flight may not be more than this."""
