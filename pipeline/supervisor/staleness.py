"""How old a group is: the updates between the oldest version that sampled it and the one that is trained with it.

A version is (incarnation, number), label `<incarnation>.<number>`. Numbers of two incarnations cannot be compared: a trainer that went back
begins another history under the same numbers. So a version of an earlier incarnation is too old, whatever its number. Labels that are no
version of ours, such as a server's own word for its weights, say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

LABEL = re.compile(r"(\d{1,15})\.(\d{1,15})\Z")


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """One version of the policy."""

    incarnation: int
    number: int

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.number}"


def parse_version(label: str) -> Version | None:
    """The version that a label names; None when it names none."""
    match = LABEL.match(label)
    return Version(int(match[1]), int(match[2])) if match else None


def oldest_of(labels: Iterable[str]) -> Version | None:
    """The oldest version among some labels; None when none is known."""
    return min(filter(None, map(parse_version, labels)), default=None)


def age(oldest: Version | None, trained_with: Version | None) -> int | None:
    """Updates between the two; None when one is unknown, or they are of two incarnations. Never negative."""
    if oldest is None or trained_with is None or oldest.incarnation != trained_with.incarnation:
        return None
    return max(0, trained_with.number - oldest.number)


def is_too_old(oldest: Version | None, trained_with: Version | None, max_staleness: int) -> bool:
    """Whether what `oldest` sampled is older than allowed. What is unknown never is."""
    if oldest is None or trained_with is None:
        return False
    if oldest.incarnation != trained_with.incarnation:
        return oldest.incarnation < trained_with.incarnation
    return trained_with.number - oldest.number > max_staleness


__all__ = ["Version", "age", "is_too_old", "oldest_of", "parse_version"]
