"""What pytest prints, from version 5 on: with `-v`, `-rA`, both or neither, colours, `-q`, and under xdist.

    ============ test session starts ============      a run begins
    collected 3 items
    t.py::test_a PASSED                   [ 33%]       progress: one line a test with -v, `[gw0] [ 33%] PASSED t.py::test_a` under xdist
    ================= FAILURES ==================      sections: tracebacks and captured text, which quotes whatever tests printed
    ========= short test summary info ===========      the summary: every test with -rA, else the failed ones
    FAILED t.py::test_b - assert 0
    ======= 1 failed, 1 passed in 0.04s =========      the run's end

Sections are skipped: what is printed there is text. As captured text can hold whole runs (pytest's own tests print them), the end of a
run is the line whose counts fit what was collected, and that is followed by nothing or by another run; when no line fits, the last one.
Where the summary lists passed tests it lists all, and alone decides.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from workers.graders.swe.logs.lines import lines_of
from workers.graders.swe.logs.parsed import Ends, ParsedLog, Status

_WORDS = {
    "PASSED": Status.PASSED,
    "FAILED": Status.FAILED,
    "ERROR": Status.ERROR,
    "SKIPPED": Status.SKIPPED,
    "XFAIL": Status.XFAIL,
    "XPASS": Status.XPASS,
    "RERUN": Status.RERUN,
}
_WITH_REASON = ("SKIPPED", "XFAIL", "XPASS", "RERUN", "FAILED", "ERROR")
_SUBTEST_WORDS = {"SUBFAILED": Status.FAILED, "SUBFAIL": Status.FAILED, "SUBERROR": Status.ERROR}
"""A passed or skipped subtest says nothing of its test, which has its own line."""
_COUNTED = {
    "passed": Status.PASSED,
    "failed": Status.FAILED,
    "error": Status.ERROR,
    "errors": Status.ERROR,
    "skipped": Status.SKIPPED,
    "xfailed": Status.XFAIL,
    "xpassed": Status.XPASS,
    "rerun": Status.RERUN,
}
_UNCOUNTED = frozenset({"deselected", "warning", "warnings", "subtests passed", "subtests failed", "subtests skipped"})
_TOOK = re.compile(r"[0-9.]+ ?s(?:econds)?(?: \([0-9:]+\))?")
_COLLECTED = re.compile(r"collected ([0-9]+) items?")
_XDIST_COLLECTED = re.compile(r"(?:[0-9]+ workers|gw[0-9]+) \[([0-9]+)(?: items?)?\]")
_PERCENT = re.compile(r"\[ *[0-9]+(?:%| */ *[0-9]+)\]")
_XDIST_BEGIN = re.compile(r"\[gw[0-9]+\] (?:\[ *[0-9]+(?:%| */ *[0-9]+)\] )?([A-Z]+) ")
_BEGIN = "test session starts"
_SUMMARY = "short test summary info"
_SECTIONS = frozenset({"ERRORS", "FAILURES", "PASSES", "XFAILURES", "XPASSES", "RERUNS", "warnings summary", _SUMMARY})
_NOT_RUN = (" [NOTRUN]", " - [NOTRUN]", " - reason: [NOTRUN]")
_MOST_RUNS = 8
"""Runs in one log that are told apart; scripts have a few, and looking for the end of each costs a look at all that follows."""
_DASHES_TRIED = 64
"""Places in a line where a known id might end; no message needs more."""


@dataclass(slots=True)
class _Run:
    """One run of pytest in the log."""

    progress: Sequence[str]
    headings: frozenset[str]
    """Titles over tracebacks: names of tests, written with points."""
    summary: Sequence[str] = ()
    counts: Mapping[str, int] | None = None
    """Of its closing line, with the words of that line."""


def parse_pytest(log: str) -> ParsedLog:
    """See the head of this file."""
    lines = lines_of(log)
    runs, doubts = _runs(lines)
    ends, counts = Ends(), _Counts()
    errors: list[str] = []
    for run in runs:
        _read(run, ends, errors, doubts)
        counts.add(run.counts)
    return ParsedLog(statuses=ends.words(), errors=tuple(dict.fromkeys(errors)), summary=counts.total, doubts=tuple(doubts))


class _Counts:
    def __init__(self) -> None:
        self.total: dict[str, int] | None = {}

    def add(self, counts: Mapping[str, int] | None) -> None:
        """A run without its last line leaves the whole log without one."""
        if counts is None or self.total is None:
            self.total = None
            return
        for word, count in counts.items():
            if word in _COUNTED:
                status = _COUNTED[word].value
                self.total[status] = self.total.get(status, 0) + count


# ------------------------------------------------------------------------------------------------- where runs begin and end


class _Mark(NamedTuple):
    """A line of pytest's own frame."""

    at: int
    title: str
    """Of `=== title ===`. For `___ title ___` and `--- title ---` with their first character before it."""
    counts: dict[str, int] | None
    """When it is the last line of a run."""


def _marks(lines: Sequence[str]) -> Iterator[_Mark]:
    for index, line in enumerate(lines):
        first = line[:1]
        if first and first in "=_-" and line[-1] == first:
            inner = line.strip(first)
            if inner[:1] == " " and inner[-1:] == " ":
                title = inner.strip() if first == "=" else first + inner
                yield _Mark(index, title, _counts(title) if first == "=" else None)
        elif first.isdigit() and (counts := _counts(line)) is not None:  # the bare last line of `-q`
            yield _Mark(index, line, counts)


def _runs(lines: Sequence[str]) -> tuple[list[_Run], list[str]]:
    marks = list(_marks(lines))
    runs: list[_Run] = []
    doubts: list[str] = []
    start = 0
    while start < len(lines):
        here = marks[bisect_left(marks, start, key=lambda mark: mark.at) :]
        run, end = _next_run(lines, here, start, is_last=len(runs) == _MOST_RUNS)
        if runs and (not here or here[0].title != _BEGIN):
            if run.summary or run.counts is not None:
                doubts.append("there is a summary behind the end of the run")
                runs.append(run)
            break
        runs.append(run)
        start = end
    return runs, doubts


def _next_run(lines: Sequence[str], here: Sequence[_Mark], start: int, *, is_last: bool) -> tuple[_Run, int]:
    """The run that begins at `start`, and the line behind it; the last one reaches to the end.

    Args:
        here: the marks from there on.
    """
    first = next(((place, mark) for place, mark in enumerate(here) if mark.title == _BEGIN or mark.title in _SECTIONS), None)
    if first is not None and first[1].title == _BEGIN:
        # what stands before it is of other programs; behind a section it is captured, and the run has no head (`-q`)
        start, here = first[1].at, here[first[0] :]
    closings = [place for place, mark in enumerate(here) if mark.counts is not None]
    first_section = next((mark.at for mark in here if mark.title in _SECTIONS), None)
    progress = lines[start : first_section or (here[closings[-1]].at if closings else len(lines))]
    collected = _collected(progress)
    chosen = closings[-1] if closings else None
    for place in closings if collected is not None and not is_last else ():
        following = here[place + 1].title if place + 1 < len(here) else None
        if following in (None, _BEGIN, _SUMMARY) and _fits(here[place].counts or {}, collected or 0):
            chosen = place
            break
    inside = here[:chosen]
    end = here[chosen].at if chosen is not None else len(lines)
    summary_at = max((mark.at for mark in inside if mark.title == _SUMMARY), default=end)
    run = _Run(
        progress=progress,
        headings=frozenset(mark.title[1:].strip() for mark in inside if mark.title[:1] == "_"),
        summary=lines[summary_at + 1 : end],
        counts=here[chosen].counts if chosen is not None else None,
    )
    return run, end + 1


def _collected(progress: Sequence[str]) -> int | None:
    for line in progress:
        found = _COLLECTED.match(line) or _XDIST_COLLECTED.match(line)
        if found:
            return int(found[1][:9])
    return None


def _fits(counts: Mapping[str, int], collected: int) -> bool:
    """Tests that broke outside of their body may be counted twice, files that were skipped whole are counted but not collected."""
    errors = counts.get("error", 0) + counts.get("errors", 0)
    ended = sum(counts.get(word, 0) for word in ("passed", "failed", "skipped", "xfailed", "xpassed", "deselected"))
    return ended - counts.get("skipped", 0) <= collected <= ended + errors


def _counts(title: str) -> dict[str, int] | None:
    """`1 failed, 2 passed in 0.04s` as numbers by word; None when it is nothing like that."""
    told, found, took = title.strip("!= ").rpartition(" in ")
    if not found or not _TOOK.fullmatch(took) or len(told) > 400:
        return None
    counts: dict[str, int] = {}
    if told in ("no tests ran", "no tests collected"):
        return counts
    for part in told.split(", "):
        number, _, word = part.partition(" ")
        if not number.isdigit() or not (word in _COUNTED or word in _UNCOUNTED):
            return None
        counts[word] = counts.get(word, 0) + int(number[:9])
    return counts


# ------------------------------------------------------------------------------------------------------- what a run says


def _read(run: _Run, ends: Ends, errors: list[str], doubts: list[str]) -> None:
    progress = Ends()
    open_test = ""
    for line in run.progress:
        found = _of_progress(line)
        if found:
            progress.add(*found)
            open_test = ""
        elif open_test and (status := _WORDS.get(_without_percent(line))) is not None:
            progress.add(open_test, status)
            open_test = ""
        elif begun := _begun(line):
            open_test = begun
        elif line.startswith(("ERROR: ", "INTERNALERROR> ", "ImportError while loading conftest")):
            errors.append(line)
    summary, times, of_subtests = Ends(), dict.fromkeys(Status, 0), 0
    hints = _Hints(progress.by_name.keys(), run.headings)
    last_xfail = ""
    for line in run.summary:
        if line.startswith("  reason: [NOTRUN]") and last_xfail:
            summary.add(last_xfail, Status.XFAIL_NOTRUN)  # pytest 7 and older tell the reason on a line of its own
        entry = _of_summary(line, hints)
        last_xfail = entry[0] if entry and entry[1] is Status.XFAIL else ""
        if entry:
            name, status, is_subtest = entry
            summary.add(name, status)
            times[status] += 1
            of_subtests += is_subtest
            if status is Status.ERROR and "::" not in name:
                errors.append(name)
    lists_all = times[Status.PASSED] > 0
    for name, status in summary.by_name.items():
        ends.add(name, status)
    for name, status in progress.by_name.items():
        if not lists_all or (name not in summary.by_name and status not in (Status.PASSED, Status.XPASS)):
            ends.add(name, status)
    if lists_all and run.counts is not None:
        for word, status in (("passed", Status.PASSED), ("failed", Status.FAILED)):
            counted = run.counts.get(word, 0)
            if counted not in (times[status], times[status] - of_subtests):  # versions differ in whether they count subtests
                doubts.append(f"{counted} tests {word} by the last line, {times[status]} by the summary")


def _of_progress(line: str) -> tuple[str, Status] | None:
    """`ID STATUS [ 50%]` or `[gw0] [ 50%] STATUS ID`."""
    if "::" not in line:
        return None
    by_worker = _XDIST_BEGIN.match(line)
    if by_worker:
        status = _WORDS.get(by_worker[1])
        return (line[by_worker.end() :].strip(), status) if status else None
    text = _without_percent(line)
    name, _, word = text.rpartition(" ")
    if word in _WORDS and "::" in name:
        return name.strip(), _WORDS[word]
    if text.endswith(")"):
        return _with_reason_in_brackets(text)
    return None


def _without_percent(line: str) -> str:
    text = line.rstrip()
    if text.endswith("]"):
        at = text.rfind("[")
        if _PERCENT.fullmatch(text, at):
            text = text[:at].rstrip()
    return text


def _begun(line: str) -> str:
    """The test of a line that goes on with what the test prints (`-s`); its end stands alone on a later line."""
    name_at = line.find("::")
    if name_at <= 0 or " " in line[:name_at]:
        return ""
    blank, bracket = line.find(" ", name_at), line.find("[", name_at)
    if 0 <= bracket < blank:
        blank = line.find("] ", bracket) + 1
    return line[:blank] if blank > 0 else ""


def _with_reason_in_brackets(text: str) -> tuple[str, Status] | None:
    """`ID SKIPPED (reason)`."""
    name_at = text.find("::")
    has_parameters = "[" in text[name_at : text.find(" ", name_at)]
    for word in _WITH_REASON:
        at = text.find(f"{']' if has_parameters else ''} {word} (", name_at)
        if at >= 0:
            name = text[: at + has_parameters]
            is_not_run = word == "XFAIL" and text.startswith(f" {word} ([NOTRUN]", at + has_parameters)
            return name.strip(), Status.XFAIL_NOTRUN if is_not_run else _WORDS[word]
    return None


def _of_summary(line: str, hints: _Hints) -> tuple[str, Status, bool] | None:
    """A line of the summary: test, end, and whether it tells of a part of the test only."""
    word, _, rest = line.partition(" ")
    status = _WORDS.get(word)
    if status is None:
        return _of_subtest(line, hints)
    rest = rest.strip()
    is_at_setup = rest.startswith("at setup of ")
    if is_at_setup:
        rest = rest.removeprefix("at setup of ")
    if not rest or (status is Status.SKIPPED and _is_folded(rest)):
        return None
    if status is Status.PASSED:
        return rest, status, False
    name = _id_of(rest, hints, has_bare_reason=status in (Status.XFAIL, Status.XPASS))
    if status is Status.XFAIL and rest.startswith(_NOT_RUN, len(name)):
        status = Status.XFAIL_NOTRUN
    return name, status, False


def _of_subtest(line: str, hints: _Hints) -> tuple[str, Status, bool] | None:
    """`SUBFAILED[what] (i=1) t.py::test - assert 0`: the test itself has failed."""
    for word, status in _SUBTEST_WORDS.items():
        if line.startswith((f"{word}(", f"{word}[", f"{word} ")):
            at = line.find("::")
            begin = line.rfind(" ", 0, max(at, 0)) + 1
            return (_id_of(line[begin:].strip(), hints, has_bare_reason=False), status, True) if at > 0 else None
    return None


def _is_folded(rest: str) -> bool:
    """`[2] t.py:3: why` tells of places, not of tests."""
    number, closing, _ = rest[1:].partition("]")
    return rest[0] == "[" and bool(closing) and number.isdigit()


@dataclass(frozen=True, slots=True)
class _Hints:
    """What else the log says of how tests are called."""

    ids: Collection[str]
    headings: Collection[str]

    def name(self, text: str) -> bool:
        """Whether `text` is the whole id of some test."""
        return text in self.ids or text.partition("::")[2].replace("::", ".") in self.headings


def _id_of(rest: str, hints: _Hints, *, has_bare_reason: bool) -> str:
    """The id before ` - message`. Both may hold brackets, dashes and each other's words.

    Args:
        has_bare_reason: old versions put the reason behind a blank alone.
    """
    dash = at = rest.find(" - ")
    for _ in range(_DASHES_TRIED):
        if at < 0:
            break
        if hints.name(rest[:at]):
            return rest[:at]
        at = rest.find(" - ", at + 1)
    name_at = rest.find("::")
    if name_at < 0 or 0 <= dash < name_at:  # a file that could not be collected
        return rest if dash < 0 else rest[:dash]
    if hints.name(rest):
        return rest
    parting = " " if has_bare_reason else " - "
    bracket, parted = rest.find("[", name_at), rest.find(parting, name_at)
    if bracket < 0 or 0 <= parted < bracket:  # no parameters
        return rest if parted < 0 else rest[:parted]
    closed = rest.find("]" + parting, bracket)
    if closed >= 0:
        return rest[: closed + 1]
    return rest if rest.endswith("]") or parted < 0 else rest[:parted]
