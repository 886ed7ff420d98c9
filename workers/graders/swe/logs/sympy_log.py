"""What SymPy's own runner (`bin/test -v`) prints: a heading a file, then its tests, the last with the verdict of the file behind it.

    sympy/sets/tests/test_sets.py[5]
    test_union ok
    test_point f                        expected to fail, and did
    test_far no reason s                skipped, with its reason before; `w` = left out as slow
    test_warns printed text             what a test prints stands between its name and its end
    ok
    test_meet F                                                  [FAIL]
    ________________________________________________________________________________
    sympy/sets/tests/test_sets.py:test_meet                      tracebacks; names in there are no results
    tests finished: 3 passed, 1 failed, in 0.10 seconds

Names of tests stand without their file, as in the data sets; each is also found as `FILE:NAME`. A test that has printed owns all lines
until its end; results among them count only when none comes.
"""

from __future__ import annotations

import re

from workers.graders.swe.logs.lines import lines_of
from workers.graders.swe.logs.parsed import Ends, ParsedLog, Status, parsed_log

_ENDS = {
    "ok": Status.PASSED,
    "f": Status.XFAIL,
    "X": Status.XPASS,
    "s": Status.SKIPPED,
    "w": Status.SKIPPED,  # left out, as it is slow
    "F": Status.FAILED,
    "E": Status.ERROR,
    "T": Status.FAILED,  # its time was up
    "K": Status.ERROR,  # interrupted
}
_FILE = re.compile(r"(\S*)\[([0-9?]+)\] ?(.*)")
_VERDICT = re.compile(r" +\[(?:OK|FAIL)\] *")
_FAR = 200
"""Blanks before a verdict, at most."""
_TEST = re.compile(r"(test\w*) (.*)")
_FINISHED = re.compile(r"[= ]*tests finished: (.*), in [0-9.]+ seconds[= ]*")
_COUNTED = {
    "passed": Status.PASSED,
    "failed": Status.FAILED,
    "skipped": Status.SKIPPED,
    "expected to fail": Status.XFAIL,
    "expected to fail but passed": Status.XPASS,
    "exceptions": Status.ERROR,
}


class _Reader:
    def __init__(self) -> None:
        self.ends, self.others = Ends(), Ends()
        self.errors: list[str] = []
        self.counts: dict[str, int] | None = None
        self._file = ""
        self._is_in_list = False
        self._open = ""
        self._last_text = ""
        self._quoted: list[tuple[str, Status]] = []
        self._finishing = ""

    def read(self, line: str) -> None:
        heading = _FILE.fullmatch(line.rstrip()) if "[" in line and not line.startswith(("test", " ")) else None
        if heading:
            self.close()
            self._file, self._is_in_list = heading[1], not heading[3].startswith("  Failed to import")
            if not self._is_in_list:
                self.errors.append(self._file)
        elif line.startswith(("____", "====")):
            self.close()
            self._is_in_list = False
        elif self._is_in_list:
            self._listed(line)
        else:
            self._count(line)

    def _listed(self, line: str) -> None:
        ended = line.rstrip()
        verdict = _VERDICT.search(ended, max(0, ended.rfind("[") - _FAR)) if ended.endswith(("[OK]", "[FAIL]")) else None
        text = ended[: verdict.start()] if verdict else ended
        test = _TEST.fullmatch(text)
        if test:
            self._begun(test[1], test[2].strip())
        elif self._open and text.strip() in _ENDS:
            self._note(self._open, _ENDS[text.strip()])
            self._open, self._quoted = "", []
        elif self._open and text.strip():
            self._last_text = text
        if verdict:
            self.close()
            self._is_in_list = False

    def _begun(self, name: str, rest: str) -> None:
        last = rest.rpartition(" ")[2]
        status = _ENDS.get(rest) or (Status.SKIPPED if last in ("s", "w") else None)
        if self._open and status is not None and not self._is_stuck():
            self._quoted.append((name, status))
            return
        self.close()
        if status is None:
            self._open, self._last_text = name, rest
        else:
            self._note(name, status)

    def close(self) -> None:
        """The list is over, or a test begins: one without an end may have it stuck to its text."""
        if self._open and self._is_stuck():
            self._note(self._open, Status.PASSED)
        for name, status in self._quoted if self._open else ():
            self._note(name, status)
        self._open, self._quoted = "", []

    def _is_stuck(self) -> bool:
        """Whether the end of the open test stands behind text that had no line end, and is not that of a result it prints."""
        return self._last_text.endswith("ok") and " test" not in f" {self._last_text}"

    def _note(self, name: str, status: Status) -> None:
        self.ends.add(name, status)
        self.others.add(f"{self._file}:{name}", status)

    def _count(self, line: str) -> None:
        """The last line, which breaks into two when it is long."""
        if "tests finished: " in line:
            self._finishing = line.strip()
        elif self._finishing:
            self._finishing += " " + line.strip()
        finished = _FINISHED.fullmatch(self._finishing) if self._finishing.rstrip("= ").endswith("seconds") else None
        if finished:
            self.counts = _counts(finished[1])
        if finished or len(self._finishing) > _LONGEST_FINISH:
            self._finishing = ""


_LONGEST_FINISH = 1_000


def parse_sympy(log: str) -> ParsedLog:
    """See the head of this file."""
    reader = _Reader()
    for line in lines_of(log):
        reader.read(line)
    reader.close()
    return parsed_log(reader.ends, reader.others, reader.errors, reader.counts)


def _counts(told: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for part in told.split(", "):
        number, _, word = part.partition(" ")
        if word in _COUNTED and number.isdigit():
            counts[_COUNTED[word].value] = int(number[:9])
    return counts
