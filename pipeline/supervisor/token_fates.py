"""What became of the tokens that a group sampled.

Invariant: each token of each member has exactly one fate, so the fates of a group add up to what its members spent, and over a run to what
its jobs did (`docs/adr/0009-accounting-and-monitors.md`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from enum import StrEnum

from pipeline.messages import Outcome
from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.views import Member


class TokenFate(StrEnum):
    """Where sampled tokens went. The values are the names of counters: `tokens_<fate>` of a step, `tok.<fate>` of a run."""

    KEPT = "kept"
    """Valid members of groups that joined a step."""
    FILTERED = "filtered"
    """Valid members of groups whose rewards did not differ."""
    SURPLUS = "surplus"
    """Valid members of informative groups that no step would take."""
    STALE = "stale"
    """Valid members of informative groups that were too old to be trained on."""
    CANCELLED = "cancelled"
    """Members that were cancelled, and finished members of groups that were given up."""
    LATE = "late"
    """Members that ended by themselves, but whose report came after the cancel."""
    FAILED = "failed"
    """Members that broke, expired, got no usable reward or are excluded; groups with too few valid members; attempts that were lost."""
    OUTSIDE = "outside"
    """Single jobs, and groups that no step launched."""


OF_VALID: Mapping[str, TokenFate] = {
    "informative": TokenFate.KEPT,
    "filtered": TokenFate.FILTERED,
    "surplus": TokenFate.SURPLUS,
    "stale": TokenFate.STALE,
    "cancelled": TokenFate.CANCELLED,
    "dropped": TokenFate.FAILED,
    "dead": TokenFate.FAILED,
}
"""Fate of a valid member's trajectory by the verdict on its group."""


def is_late(member: Member) -> bool:
    """Whether it ended by itself and its report came after the cancel: its stop reason still says how."""
    return member.outcome is Outcome.CANCELLED and bool(member.stop)


def fates(verdict: Verdict, members: Mapping[int, Member], valid: Collection[int]) -> dict[str, int]:
    """Tokens of a group's members by fate; only fates that have some.

    Args:
        members: as they ended, by number.
        valid: numbers of those that count in the statistics of the group.
    """
    tokens: Counter[str] = Counter()
    for index, member in members.items():
        if index in valid:
            tokens[OF_VALID[verdict.value]] += member.sampled_tokens
            # what the trajectory does not have was sampled by attempts that were lost
            tokens[TokenFate.FAILED] += member.spent_tokens - member.sampled_tokens
        elif is_late(member):
            tokens[TokenFate.LATE] += member.spent_tokens
        elif member.outcome is Outcome.CANCELLED:
            tokens[TokenFate.CANCELLED] += member.spent_tokens
        else:
            tokens[TokenFate.FAILED] += member.spent_tokens
    return {str(fate): count for fate, count in tokens.items() if count}
