"""What a log says, whichever runner wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    """How one test ended, in the order of how bad it is: of several ends of one test the worst counts."""

    RERUN = "RERUN"
    """A try that a plugin did not count; alone it is no end."""
    PASSED = "PASSED"
    XPASS = "XPASS"
    """Marked as failing, and it passed."""
    XFAIL = "XFAIL"
    """Marked as failing, ran, and failed."""
    SKIPPED = "SKIPPED"
    XFAIL_NOTRUN = "XFAIL_NOTRUN"
    """Marked as failing, and for that never run."""
    ERROR = "ERROR"
    """It broke outside of its own body: fixtures, set-up, cleaning up, import of its file."""
    FAILED = "FAILED"

    @property
    def rank(self) -> int:
        return _RANKS[self]


_RANKS = {status: rank for rank, status in enumerate(Status)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedLog:
    """What a whole log says.

    A test that the log does not name has no entry: what is missing has not passed.
    """

    statuses: Mapping[str, str]
    """Words of `Status` by test, the id as the runner writes it."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Words of `Status` by other names of tests, as data sets have them: a docstring, a title without its groups, the name with its
    package or file. One that several tests share has the worst of their ends. No name stands in both maps."""
    errors: tuple[str, ...] = ()
    """What broke before its tests could run, or without one of them: packages that do not build, files that cannot be imported."""
    summary: Mapping[str, int] | None = None
    """The counts of the runner's own last line, by words of `Status`, as far as it has them; None = the log has no such line, so the
    run did not come to its end."""
    doubts: tuple[str, ...] = ()
    """What does not fit together, in words: a second summary after the end, counts that differ from the tests named. Not in an honest
    log of one run."""

    def status(self, name: str) -> str | None:
        """The end of a test by any of its names."""
        return self.statuses.get(name) or self.aliases.get(name)


class Ends:
    """Collects ends of tests; the worst of each stays."""

    def __init__(self) -> None:
        self.by_name: dict[str, Status] = {}

    def add(self, name: str, status: Status) -> None:
        known = self.by_name.get(name)
        if known is None or status.rank > known.rank:
            self.by_name[name] = status

    def words(self, *, without: Mapping[str, object] | None = None) -> dict[str, str]:
        """As plain words, those of `without` left out."""
        return {name: status.value for name, status in self.by_name.items() if not without or name not in without}


def parsed_log(ends: Ends, others: Ends, errors: Sequence[str], summary: Mapping[str, int] | None) -> ParsedLog:
    """What a reader of lines has found; `others` are ends by other names."""
    statuses = ends.words()
    return ParsedLog(statuses=statuses, aliases=others.words(without=statuses), errors=tuple(dict.fromkeys(errors)), summary=summary)
