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

Results are taken from the list alone, and no more of them than `running` promises.
"""

from __future__ import annotations

import re

from workers.graders.swe.logs.lines import lines_of
from workers.graders.swe.logs.parsed import Ends, ParsedLog, Status

_ENDS = {"ok": Status.PASSED, "FAILED": Status.FAILED, "ignored": Status.SKIPPED}
_RUNNING = re.compile(r"running ([0-9]+) tests?")
_TOOK = re.compile(r" <[0-9.]+s>$")
_RESULT = re.compile(r"test result: (?:ok|FAILED)\. ([0-9]+) passed; ([0-9]+) failed; ([0-9]+) ignored;.*")
_NOT_BUILT = re.compile(r"error: could not compile `([^`]+)`.*")
_SHOULD_PANIC = " - should panic"


class _Reader:
    def __init__(self) -> None:
        self.ends, self.others = Ends(), Ends()
        self.errors: list[str] = []
        self.counts: dict[str, int] | None = None
        self._left = 0
        self._pending = ""
        self._last_text = ""

    def read(self, line: str) -> None:
        running = _RUNNING.fullmatch(line)
        if running and not self._left:
            self._left, self._pending = int(running[1][:9]), ""
            self.counts = self.counts or {}
            return
        result = _RESULT.fullmatch(line)
        if result:
            self._close(result)
        elif line == "failures:":
            self._left, self._pending = 0, ""
        elif self._left:
            self._listed(line)
        elif line.startswith("error: could not compile `") and (broken := _NOT_BUILT.fullmatch(line)):
            self.errors.append(broken[1])

    def _listed(self, line: str) -> None:
        if line.startswith("test "):
            name, found, rest = line.removeprefix("test ").partition(" ... ")
            if found:
                self._end_by_last_text()
                status = _status(rest)
                if status is None:
                    self._pending, self._last_text = name, rest
                else:
                    self._note(name, status)
                return
        if not self._pending:
            return
        status = _status(line)
        if status is not None:
            self._note(self._pending, status)
            self._pending = ""
        elif line.strip():
            self._last_text = line

    def _end_by_last_text(self) -> None:
        """A test that printed without a line end has its own end stuck to that text."""
        for word, status in _ENDS.items():
            if self._pending and self._last_text.endswith(word):
                self._note(self._pending, status)
                break
        self._pending = ""

    def _note(self, name: str, status: Status) -> None:
        self._left -= self._left > 0
        self.ends.add(name, status)
        if name.endswith(_SHOULD_PANIC):
            self.others.add(name.removesuffix(_SHOULD_PANIC), status)

    def _close(self, result: re.Match[str]) -> None:
        self._end_by_last_text()
        self._left = 0
        self.counts = self.counts or {}
        for status, number in zip((Status.PASSED, Status.FAILED, Status.SKIPPED), result.groups(), strict=True):
            self.counts[status.value] = self.counts.get(status.value, 0) + int(number[:9])


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
    statuses = reader.ends.words()
    return ParsedLog(
        statuses=statuses,
        aliases=reader.others.words(without=statuses),
        errors=tuple(dict.fromkeys(reader.errors)),
        summary=reader.counts or None,
    )
