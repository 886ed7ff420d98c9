"""From how tests ended to whether a task is resolved.

Invariants
    - A test that has no end has not passed, and neither has one that was skipped or was never run.
    - Expected failures are as good as passes, both ways round: `XFAIL` is what the test's author wanted, `XPASS` ran and passed.
    - A name that the data set cut at a blank stands for all tests that begin so, only when no test has that very name; it has passed
      when all of them have.
    - No tests to judge by is never a success.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from workers.graders.swe.logs.parsed import Status

MISSING = "MISSING"
CUT = "CUT"
_PASSING = frozenset({Status.PASSED.value, Status.XPASS.value, Status.XFAIL.value})
_SHOWN = 5
"""Names in `detail`; the whole lists stand beside it."""
_BLANKS = (" ", "\t")


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
        return _passed(self.fail_to_pass)

    @property
    def not_fixed(self) -> tuple[str, ...]:
        """Of FAIL_TO_PASS, those that did not."""
        return _not_passed(self.fail_to_pass)

    @property
    def kept(self) -> tuple[str, ...]:
        """Of PASS_TO_PASS, those that passed."""
        return _passed(self.pass_to_pass)

    @property
    def broken(self) -> tuple[str, ...]:
        """Of PASS_TO_PASS, those that did not."""
        return _not_passed(self.pass_to_pass)


def has_passed(status: str) -> bool:
    """Whether a test that ended so counts as passed."""
    return status in _PASSING


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
    ends = _Ends(statuses, aliases or {})
    to_fix = {name: ends.of(name) for name in fail_to_pass}
    to_keep = {name: ends.of(name) for name in pass_to_pass}
    # a test in both lists counts twice, as it stands in the data
    everything = [*to_fix.values(), *to_keep.values()]
    passed = sum(map(has_passed, everything))
    reason, detail = "", ""
    if not everything:
        reason, detail = "no_tests", "the task names no test"
    elif all(status == MISSING for status in everything):
        reason, detail = "nothing_ran", f"none of the {len(everything)} tests of the task has an end"
    elif failed := _not_passed(to_fix):
        reason, detail = "not_fixed", _told(failed, to_fix)
    elif failed := _not_passed(to_keep):
        reason, detail = "broke_tests", _told(failed, to_keep)
    return SweVerdict(
        resolved=not reason,
        reason=reason,
        detail=detail,
        fraction=passed / len(everything) if everything else 0.0,
        fail_to_pass=to_fix,
        pass_to_pass=to_keep,
    )


class _Ends:
    """Finds the end of a test by the name that a data set has for it."""

    def __init__(self, statuses: Mapping[str, str], aliases: Mapping[str, str]) -> None:
        self._statuses = statuses
        self._aliases = aliases
        self._sorted: list[str] | None = None

    def of(self, name: str) -> str:
        return self._statuses.get(name) or self._aliases.get(name) or self._cut(name)

    def _cut(self, name: str) -> str:
        ends = {self._statuses[candidate] for candidate in self._longer(name)}
        if not ends:
            return MISSING
        if all(map(has_passed, ends)):
            return min(ends, key=_rank)
        return ends.pop() if len(ends) == 1 else CUT

    def _longer(self, name: str) -> Iterable[str]:
        if not name.strip():
            return
        if self._sorted is None:
            self._sorted = sorted(self._statuses)
        for blank in _BLANKS:
            begin = name + blank
            for candidate in self._sorted[bisect_left(self._sorted, begin) :]:
                if not candidate.startswith(begin):
                    break
                yield candidate


def _rank(status: str) -> int:
    return Status(status).rank


def _passed(ends: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name, status in ends.items() if has_passed(status))


def _not_passed(ends: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name, status in ends.items() if not has_passed(status))


def _told(names: Sequence[str], ends: Mapping[str, str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(f"{name} {ends[name]}" for name in names[:_SHOWN]) + more
