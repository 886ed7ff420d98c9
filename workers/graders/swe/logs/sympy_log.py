"""What SymPy's own runner (`bin/test -v`) prints: a heading a file, then its tests, the last with the verdict of the file behind it.

    sympy/sets/tests/test_sets.py[4]
    test_union ok
    test_point f                        expected to fail, and did
    test_meet F                                                  [FAIL]
    ________________________________________________________________________________
    sympy/sets/tests/test_sets.py:test_meet                      tracebacks; names in there are no results
    tests finished: 3 passed, 1 failed, in 0.10 seconds

Names of tests stand without their file, as in the data sets; each is also found as `FILE:NAME`.
"""

from __future__ import annotations

import re

from workers.graders.swe.logs.lines import lines_of
from workers.graders.swe.logs.parsed import Ends, ParsedLog, Status

_ENDS = {
    "ok": Status.PASSED,
    "f": Status.XFAIL,
    "X": Status.XPASS,
    "s": Status.SKIPPED,
    "F": Status.FAILED,
    "E": Status.ERROR,
    "T": Status.FAILED,  # its time was up
    "K": Status.ERROR,  # interrupted
}
_FILE = re.compile(r"(\S+\.py)\[([0-9?]+)\] ?(.*)")
_VERDICT = re.compile(r" +\[(?:OK|FAIL)\] *$")
_RESULT = re.compile(r"(test\w*) (ok|[A-Za-z])(?: .*)?")
_SKIPPED = re.compile(r"(test\w*) [Ss]kip(?:ped)?\b.*")
_FINISHED = re.compile(r"=* ?tests finished: (.*), in [0-9.]+ seconds ?=*")
_COUNTED = {
    "passed": Status.PASSED,
    "failed": Status.FAILED,
    "skipped": Status.SKIPPED,
    "expected to fail": Status.XFAIL,
    "expected to fail but passed": Status.XPASS,
    "exceptions": Status.ERROR,
}


def parse_sympy(log: str) -> ParsedLog:
    """See the head of this file."""
    ends, others, errors = Ends(), Ends(), []
    counts: dict[str, int] | None = None
    file, is_in_list = "", False
    for line in lines_of(log):
        heading = _FILE.fullmatch(line.rstrip())
        if heading:
            file, is_in_list = heading[1], True
            if "Failed to import" in heading[3]:
                errors.append(file)
            continue
        if line.startswith(("____", "====")):
            is_in_list = False
        finished = _FINISHED.fullmatch(line.strip()) if "tests finished: " in line else None
        if finished:
            counts = _counts(finished[1])
        elif is_in_list and line.startswith("test"):
            has_verdict = line.rstrip().endswith("]") and _VERDICT.search(line, max(0, line.rstrip().rfind("[") - 200))
            text = line[: has_verdict.start()] if has_verdict else line
            name, status = _ended(text.rstrip())
            if status is not None:
                ends.add(name, status)
                others.add(f"{file}:{name}", status)
            is_in_list = not has_verdict
    statuses = ends.words()
    return ParsedLog(statuses=statuses, aliases=others.words(without=statuses), errors=tuple(dict.fromkeys(errors)), summary=counts)


def _ended(text: str) -> tuple[str, Status | None]:
    result = _RESULT.fullmatch(text)
    if result and result[2] in _ENDS:
        return result[1], _ENDS[result[2]]
    skipped = _SKIPPED.fullmatch(text)
    return (skipped[1], Status.SKIPPED) if skipped else ("", None)


def _counts(told: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for part in told.split(", "):
        number, _, word = part.partition(" ")
        if word in _COUNTED and number.isdigit():
            counts[_COUNTED[word].value] = int(number[:9])
    return counts
