"""What `cargo test` prints: for each binary a list of its tests, then the text of those that failed.

         Running unittests src/lib.rs (target/debug/deps/m-0af1)
    running 3 tests
    test tests::adds ... ok
    test tests::slow ... ignored, takes an hour
    test tests::noisy ... printed text                  with --nocapture
    ok

    failures:

    ---- tests::breaks stdout ----                      what tests printed is quoted from here on
    ...
    test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

Results are taken from the list alone, and no more of them than `running` promises. The end of a binary is the line whose counts are that
promise, right behind the list or behind the names of what failed; other such lines are quoted.
"""

from __future__ import annotations

import re

from workers.graders.swe.logs.lines import lines_of
from workers.graders.swe.logs.parsed import Ends, ParsedLog, Status, parsed_log

_ENDS = {"ok": Status.PASSED, "FAILED": Status.FAILED, "ignored": Status.SKIPPED}
_RUNNING = re.compile(r"running ([0-9]+) tests?")
_TOOK = re.compile(r" <[0-9.]+s>$")
_RESULT = re.compile(r"test result: (?:ok|FAILED)\. ([0-9]+) passed; ([0-9]+) failed; ([0-9]+) ignored; ([0-9]+) measured;.*")
_NOT_BUILT = re.compile(r"error: could not compile `([^`]+)`.*")
_SHOULD_PANIC = " - should panic"


class _Reader:
    def __init__(self) -> None:
        self.ends, self.others = Ends(), Ends()
        self.errors: list[str] = []
        self.counts: dict[str, int] | None = None
        self._promised: int | None = None
        """Tests of the binary that runs now."""
        self._left = 0
        self._is_quoting = self._is_naming = False
        self._open = ""
        self._last_text = ""
        self._quoted: list[tuple[str, Status]] = []

    def read(self, line: str) -> None:
        if self._promised is None:
            running = _RUNNING.fullmatch(line)
            if running:
                self._promised = self._left = int(running[1][:9])
                self._is_quoting = self._is_naming = False
            elif broken := _NOT_BUILT.fullmatch(line):
                self.errors.append(broken[1])
        elif line == "failures:":
            self._is_naming, self._is_quoting = self._is_quoting, True
        elif not self._closed(line):
            if not self._is_quoting:
                self._listed(line)
            elif line.strip() and not line.startswith("    "):
                self._is_naming = False

    def close(self) -> None:
        """The list is over: a test without an end may have it stuck to its text; what stood in that text were results after all."""
        if self._open and (status := _stuck(self._last_text)) is not None:
            self._note(self._open, status)
        for name, status in self._quoted if self._open else ():
            self._note(name, status)
        self._open, self._quoted = "", []

    def _closed(self, line: str) -> bool:
        result = _RESULT.fullmatch(line) if not self._is_quoting or self._is_naming else None
        if result is None or sum(int(number[:9]) for number in result.groups()) != self._promised:
            return False
        self.close()
        self._promised = None
        self.counts = self.counts or {}
        for status, number in zip((Status.PASSED, Status.FAILED, Status.SKIPPED), result.groups(), strict=False):
            self.counts[status.value] = self.counts.get(status.value, 0) + int(number[:9])
        return True

    def _listed(self, line: str) -> None:
        name, found, rest = line.removeprefix("test ").partition(" ... ") if line.startswith("test ") else ("", "", "")
        status = _status(rest if found else line)
        if self._open and not found:
            if status is not None:
                self._note(self._open, status)
                self._open, self._quoted = "", []
            elif line.strip():
                self._last_text = line
        elif found and self._left > 0:
            if self._open and status is not None and _stuck(self._last_text) is None:
                self._quoted.append((name, status))
                return
            self.close()
            if status is None:
                self._open, self._last_text = name, rest
            else:
                self._note(name, status)

    def _note(self, name: str, status: Status) -> None:
        self._left -= 1
        self.ends.add(name, status)
        if name.endswith(_SHOULD_PANIC):
            self.others.add(name.removesuffix(_SHOULD_PANIC), status)


def _stuck(text: str) -> Status | None:
    """The end of a test whose text had no line end, unless that text quotes a result."""
    if " ... " in text:
        return None
    return next((status for word, status in _ENDS.items() if text.endswith(word)), None)


def _status(text: str) -> Status | None:
    text = _TOOK.sub("", text.strip()) if text.endswith(">") else text.strip()
    if text.startswith("ignored, "):
        return Status.SKIPPED
    return _ENDS.get(text)


def parse_cargo(log: str) -> ParsedLog:
    """See the head of this file."""
    reader = _Reader()
    for line in lines_of(log):
        reader.read(line)
    reader.close()
    return parsed_log(reader.ends, reader.others, reader.errors, reader.counts)
