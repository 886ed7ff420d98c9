"""What unittest prints, alone and under Django's runner, with `-v` or without.

    test_a (m.T.test_a) ... ok                       until Python 3.10: test_a (m.T)
    test_b (m.T.test_b)                              with a docstring its first line comes second
    What it shows. ... FAIL
    test_c (m.T.test_c) ... printed text             what a test prints stands between its name and its end
    more of it
    ok
    ======================================================================
    FAIL: test_b (m.T.test_b)                        then a block each for what failed; subtests have blocks only
    ----------------------------------------------------------------------
    ...
    Ran 3 tests in 0.001s

    FAILED (failures=1)

A test that has begun owns all that follows until its end. Lines in between that look like results of others are its own printing; they
count only when no end of it comes (it was killed). A test whose subtests failed has no end of its own, and until Python 3.10 not even a
line of its own: the next test stands on it. Which these are is told by the blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from workers.graders.swe.logs.lines import lines_of
from workers.graders.swe.logs.parsed import Ends, ParsedLog, Status

_EXACT = {
    "ok": Status.PASSED,
    "OK": Status.PASSED,
    "FAIL": Status.FAILED,
    "ERROR": Status.ERROR,
    "expected failure": Status.XFAIL,
    "unexpected success": Status.XPASS,
}
_STUCK_TO_TEXT = ("ok", "FAIL", "ERROR")
"""Ends that text printed without a line end may stand before."""
_BLOCKS = {"FAIL: ": Status.FAILED, "ERROR: ": Status.ERROR, "UNEXPECTED SUCCESS: ": Status.XPASS}
_LINE = 70
_NAME = re.compile(r"(\S+) \(([^\s()]+)\)")
_RAN = re.compile(r"Ran ([0-9]+) tests? in [0-9.]+s")
_CLOSED = re.compile(r"(?:OK|FAILED|NO TESTS RAN)(?: \(([a-z]+(?: [a-z]+)*=[0-9]+(?:, [a-z]+(?: [a-z]+)*=[0-9]+)*)\))?")
_COUNTED = {
    "failures": Status.FAILED,
    "errors": Status.ERROR,
    "skipped": Status.SKIPPED,
    "expected failures": Status.XFAIL,
    "unexpected successes": Status.XPASS,
}


@dataclass(slots=True)
class _Open:
    """A test that has begun."""

    name: str
    last_text: str
    """What was printed last."""
    quoted: list[Callable[[], None]] = field(default_factory=list)
    """Results that stand in its text, each as what would note it."""


class _Reader:
    def __init__(self, without_end: Collection[str]) -> None:
        self._without_end = without_end
        self.ends, self.titles = Ends(), dict[str, set[str]]()
        self.errors: list[str] = []
        self.counts: dict[str, int] | None = None
        self._open: _Open | None = None
        self._name_line = ""
        self._is_in_blocks = False
        self._ran: int | None = None
        self._before = ""

    def read(self, line: str) -> None:
        if self._block(line) or self._closing(line) or self._begun_or_ended(line):
            pass
        elif self._open is not None and (status := _status(line.strip())) is not None:
            self._end(status)
        elif self._open is not None and line.strip():
            self._open.last_text = line.rstrip()
        self._name_line = line if _NAME.fullmatch(line) else ""
        self._before = line

    def close(self) -> None:
        """The log is over, or its tests are."""
        if self._open is None:
            return
        was, self._open = self._open, None
        for word in _STUCK_TO_TEXT:
            if was.last_text.endswith(word):
                self.ends.add(was.name, _EXACT[word])
                break
        for note in was.quoted:
            note()

    def _end(self, status: Status) -> None:
        assert self._open is not None
        self.ends.add(self._open.name, status)
        self._open = None

    def _begun_or_ended(self, line: str) -> bool:
        """`NAME ... END`, `NAME ... text`, or the same with the docstring instead of the name."""
        head, found, rest = line.rpartition(" ... ")
        status = _status(rest.strip()) if found else None
        own = _NAME.match(line)
        if own and own[0] in self._without_end and line.startswith(" ... ", own.end()):
            self._begun_or_ended(line[own.end() + len(" ... ") :])
            return True
        own = _NAME.match(head.lstrip())
        if status is None or (own and " ... " in head[own.end() :]):  # in the latter case a test prints what looks like a result
            status = None
            head, found, rest = line.partition(" ... ")
            if not found:
                if not line.endswith(" ..."):
                    return False
                head, rest = line.removesuffix(" ..."), ""
        name, title = self._named(head)
        if not name or (self._is_in_blocks and name in self.ends.by_name):
            return False
        if status is not None and self._open is not None:
            self._open.quoted.append(partial(self._note, name, title, status))
            return True
        if status is not None:
            # without a name of unittest's form a line is taken for a result only when it is one whole
            self._note(name, title, status)
            return True
        if not title and not _NAME.match(head):
            return False
        earlier = self._open
        if earlier is not None:
            self.close()
        if title:
            self._title(name, title)
        self._open = _Open(name, rest)
        self._is_in_blocks = False
        return True

    def _named(self, head: str) -> tuple[str, str]:
        """The test and its title, if the line has one."""
        stripped = head.strip()
        found = _NAME.match(stripped)
        if found:  # what follows are the parameters of a subtest
            return found[0], ""
        if self._name_line:
            return self._name_line, stripped
        return ("", "") if head[:1].isspace() else (stripped, "")

    def _note(self, name: str, title: str, status: Status) -> None:
        self.ends.add(name, status)
        if title:
            self._title(name, title)

    def _title(self, name: str, title: str) -> None:
        self.titles.setdefault(title, set()).add(name)

    def _block(self, line: str) -> bool:
        if self._before != "=" * _LINE:
            return False
        for word, status in _BLOCKS.items():
            if line.startswith(word):
                name = line.removeprefix(word)
                found = _NAME.match(name)
                name = found[0] if found else name
                if self._open is not None:
                    self._open.quoted.append(partial(self._note_block, name, status))
                else:
                    self._is_in_blocks = True
                    self._note_block(name, status)
                return True
        return False

    def _note_block(self, name: str, status: Status) -> None:
        self.ends.add(name, status)
        if name.startswith(("setUpClass (", "tearDownClass (", "setUpModule (", "tearDownModule (")) or "_FailedTest" in name:
            self.errors.append(name)

    def _closing(self, line: str) -> bool:
        ran = _RAN.fullmatch(line)
        if ran and self._before == "-" * _LINE:
            self._ran = int(ran[1][:9])
            return True
        closed = _CLOSED.fullmatch(line) if self._ran is not None else None
        if closed is None or self._ran is None:
            return False
        self.close()
        counts = {word: int(number[:9]) for word, _, number in (part.rpartition("=") for part in (closed[1] or "").split(", ") if part)}
        self.counts = {_COUNTED[word].value: number for word, number in counts.items() if word in _COUNTED}
        self.counts[Status.PASSED.value] = max(0, self._ran - sum(self.counts.values()))
        self._ran = None
        return True


def parse_unittest(log: str) -> ParsedLog:
    """See the head of this file."""
    lines = lines_of(log)
    reader = _Reader(_with_failed_subtests(lines))
    for line in lines:
        reader.read(line)
    reader.close()
    statuses = reader.ends.words()
    return ParsedLog(
        statuses=statuses,
        aliases=_aliases(statuses, reader.titles),
        errors=tuple(dict.fromkeys(reader.errors)),
        summary=reader.counts,
    )


def _with_failed_subtests(lines: Sequence[str]) -> set[str]:
    """Tests that have a block with parameters."""
    found = set()
    for before, line in pairwise(lines):
        if line.startswith(("FAIL: ", "ERROR: ")) and before == "=" * _LINE:
            _, _, told = line.partition(": ")
            name = _NAME.match(told)
            if name and told[name.end() :].strip():
                found.add(name[0])
    return found


def _aliases(statuses: Mapping[str, str], titles: Mapping[str, set[str]]) -> dict[str, str]:
    """Docstrings, the other form of the id, and the dotted name."""
    others = Ends()
    for title, names in titles.items():
        for name in names & statuses.keys():
            others.add(title, Status(statuses[name]))
    for name, status in statuses.items():
        found = _NAME.fullmatch(name)
        if found:
            method, place = found.groups()
            owner = place.removesuffix(f".{method}")
            for other in (f"{method} ({owner})", f"{method} ({owner}.{method})", f"{owner}.{method}"):
                others.add(other, Status(status))
    return others.words(without=statuses)


def _status(text: str) -> Status | None:
    return Status.SKIPPED if text == "skipped" or text.startswith(("skipped '", 'skipped "')) else _EXACT.get(text)
