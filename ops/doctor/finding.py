"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Grade(StrEnum):
    """How much it matters."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    WARN = "warn"
    """Works, and will hurt."""
    FAIL = "fail"
    """Something does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact, and what to do about it."""

    check: str
    """Such as `redis.noeviction`."""
    grade: Grade
    what: str
    do: str = ""
    """Empty = nothing."""


def ok(check: str, what: str) -> Finding:
    """It is as it should be."""
    return Finding(check=check, grade=Grade.OK, what=what)


def note(check: str, what: str, do: str = "") -> Finding:
    """It is worth knowing."""
    return Finding(check=check, grade=Grade.NOTE, what=what, do=do)


def warn(check: str, what: str, do: str) -> Finding:
    """It will hurt."""
    return Finding(check=check, grade=Grade.WARN, what=what, do=do)


def fail(check: str, what: str, do: str) -> Finding:
    """It does not work."""
    return Finding(check=check, grade=Grade.FAIL, what=what, do=do)
