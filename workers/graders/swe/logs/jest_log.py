"""What jest prints with `--verbose` (or for one file): a block a file, from its line to the first empty one.

    PASS  src/a.test.js (5.2 s)
      sum                               groups, by indentation
        ✓ adds (1501 ms)                the time is there for slow tests only
        ✕ subtracts
        ○ skipped divides
        ✎ todo multiplies

      ● sum › subtracts                 details of what failed; text of `console.log` stands in blocks of its own
    Tests:       1 failed, 1 skipped, 1 todo, 1 passed, 4 total

A test is named `group > group > title`; it is also found by its title alone, with its file, and with jest's own parting `›`.
"""

from __future__ import annotations

import re

from workers.graders.swe.logs.lines import lines_of
from workers.graders.swe.logs.parsed import Ends, ParsedLog, Status, parsed_log

_FILE = re.compile(r"(PASS|FAIL) +(?:\S+ +)??(\S+\.\S+)(?: \([0-9.]+ m?s\))?(?: .*)?")
_MARKS = {
    "✓": Status.PASSED,
    "√": Status.PASSED,
    "✔": Status.PASSED,
    "✕": Status.FAILED,
    "×": Status.FAILED,
    "✖": Status.FAILED,
    "✗": Status.FAILED,
    "○": Status.SKIPPED,
    "◌": Status.SKIPPED,
    "✎": Status.SKIPPED,
}
_SAID_BEFORE = {"○": "skipped ", "◌": "skipped ", "✎": "todo "}
_TIME = re.compile(r" \((?:[0-9]+(?:\.[0-9]+)? (?:ms|s|m|h|min)(?:, )?)+\)$")
_LONGEST_TIME = 40
_COUNTS = {"failed": Status.FAILED, "skipped": Status.SKIPPED, "todo": Status.SKIPPED, "passed": Status.PASSED}
_BROKEN = "● Test suite failed to run"


class _Reader:
    def __init__(self) -> None:
        self.ends, self.others = Ends(), Ends()
        self.errors: list[str] = []
        self.counts: dict[str, int] | None = None
        self._file = ""
        self._is_in_list = False
        self._groups: list[tuple[int, str]] = []

    def read(self, line: str) -> None:
        badge = line.removeprefix(" ")  # in colour it has a blank around
        file = _FILE.fullmatch(badge) if badge.startswith(("PASS ", "FAIL ")) else None
        if file:
            self._file, self._is_in_list, self._groups = file[2], True, []
            self.others.add(self._file, Status.PASSED if file[1] == "PASS" else Status.FAILED)
        elif not line.strip():
            self._is_in_list = False
        elif line.strip() == _BROKEN and self._file:
            self.errors.append(self._file)
            self.others.by_name[self._file] = Status.ERROR
            self._is_in_list = False
        elif line.startswith("Tests: "):
            self._is_in_list = False
            self._count(line.removeprefix("Tests:"))
        elif self._is_in_list:
            self._listed(line)

    def _listed(self, line: str) -> None:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text.startswith("●"):
            self._is_in_list = False
            return
        while self._groups and self._groups[-1][0] >= indent:
            self._groups.pop()
        mark, _, title = text.partition(" ")
        status = _MARKS.get(mark)
        if status is None:
            self._groups.append((indent, text))
            return
        title = title.strip().removeprefix(_SAID_BEFORE.get(mark, ""))
        time = _TIME.search(title, max(0, len(title) - _LONGEST_TIME))
        if time:
            title = title[: time.start()]
        path = [*(group for _, group in self._groups), title]
        name = " > ".join(path)
        self.ends.add(name, status)
        for other in (title, f"{self._file} > {name}", " › ".join(path), " ".join(path)):
            self.others.add(other, status)

    def _count(self, told: str) -> None:
        counts: dict[str, int] = {}
        for part in told.split(","):
            number, _, word = part.strip().partition(" ")
            if word in _COUNTS and number.isdigit():
                status = _COUNTS[word].value
                counts[status] = counts.get(status, 0) + int(number[:9])
        self.counts = counts


def parse_jest(log: str) -> ParsedLog:
    """See the head of this file."""
    reader = _Reader()
    for line in lines_of(log):
        reader.read(line)
    return parsed_log(reader.ends, reader.others, reader.errors, reader.counts)
