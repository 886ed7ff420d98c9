"""From how tests ended to whether a task is resolved.

Invariants
    - A test that has no end has not passed, and neither has one that was skipped or was never run.
    - Expected failures are as good as passes, both ways round: `XFAIL` is what the test's author wanted, `XPASS` ran and passed.
    - A name that the data set cut at a blank stands for all tests that begin so, only when no test has that very name; it has passed
      when all of them have.
    - No tests to judge by is never a success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SweVerdict:
    """What became of the tests that count."""

    resolved: bool
    """Each of them passed."""
    reason: str
    """Empty when resolved; else `no_tests`, `nothing_ran` (no test of the task has an end), `not_fixed` (of FAIL_TO_PASS some did not
    pass), `broke_tests` (those did, of PASS_TO_PASS some did not)."""
    detail: str
    """The same for a person: which tests, how they ended, how many more."""
    fraction: float
    """Share of all listed tests that passed, 0 to 1."""
    fail_to_pass: Mapping[str, str]
    """How each ended, in the words of the log; `MISSING` = not at all, `CUT` = the name is cut and its tests ended differently."""
    pass_to_pass: Mapping[str, str]

    @property
    def fixed(self) -> tuple[str, ...]:
        """Of FAIL_TO_PASS, those that passed."""
        raise NotImplementedError

    @property
    def not_fixed(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def kept(self) -> tuple[str, ...]:
        """Of PASS_TO_PASS, those that passed."""
        raise NotImplementedError

    @property
    def broken(self) -> tuple[str, ...]:
        raise NotImplementedError


def has_passed(status: str) -> bool:
    """Whether a test that ended so counts as passed."""
    raise NotImplementedError


def judge(
    statuses: Mapping[str, str],
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    *,
    aliases: Mapping[str, str] | None = None,
) -> SweVerdict:
    """Judges the ends of tests (`ParsedLog.statuses`, or those of a reporter) by the two lists of the data set.

    Args:
        aliases: other names of tests (`ParsedLog.aliases`), looked at for names that `statuses` does not have.
    """
    raise NotImplementedError
