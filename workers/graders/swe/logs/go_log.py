"""What `go test` prints, with `-v`, without, and with `-json`.

    === RUN   TestP                     with -v: begins, pauses and goes on when it is parallel
    === RUN   TestP/a
        p_test.go:5: text               what a test logs is indented and has its place, what it prints stands as it is
    --- PASS: TestP (0.00s)             its end; ends of subtests follow that of their parent, indented by its depth
        --- PASS: TestP/a (0.00s)
    FAIL
    FAIL	example.com/m/p	0.003s      the package of all that stands above
    FAIL	example.com/m/y [build failed]

With `-v` a test that has not begun, or has ended, cannot end: such a line is printed by a test. Tests of one name in several packages
have one entry, the worst; each is also found under `PACKAGE/NAME`, `PACKAGE.NAME` and `PACKAGE::NAME`.
"""

from __future__ import annotations

import json
import re

from workers.graders.swe.logs.lines import lines_of
from workers.graders.swe.logs.parsed import Ends, ParsedLog, Status, parsed_log

_ENDS = {"PASS": Status.PASSED, "FAIL": Status.FAILED, "SKIP": Status.SKIPPED}
_RESULT = re.compile(r"( *)--- (PASS|FAIL|SKIP): (.+) \([0-9.]+(?:s| seconds)\)")
_BEGINS = re.compile(r"=== RUN +(\S.*)")
_PACKAGE = re.compile(r"(ok|FAIL|---) *\t(\S+)(?:[ \t]+(.*))?")
_BROKEN = ("[build failed]", "[setup failed]")
_ACTIONS = {"pass": Status.PASSED, "fail": Status.FAILED, "skip": Status.SKIPPED}
_DEPTH = 4
"""Blanks a level of subtests."""


class _Reader:
    def __init__(self) -> None:
        self.ends, self.qualified = Ends(), Ends()
        self.errors: list[str] = []
        self._failed_in: set[str] = set()
        self._has_begins = False
        self._running: set[str] = set()
        self._ended: list[tuple[str, Status]] = []
        self.is_complete = False

    def read(self, line: str) -> None:
        if line.startswith("{") and self._event(line):
            return
        line = line.removeprefix("\x16")  # marks genuine lines for test2json
        begins = _BEGINS.fullmatch(line)
        if begins:
            self._has_begins = True
            self._running.add(begins[1])
            return
        result = _RESULT.fullmatch(line)
        if result:
            self._result(len(result[1]), result[3], _ENDS[result[2]])
            return
        package = _PACKAGE.fullmatch(line)
        if package and package[1] != "---":
            self._package(package[2], has_failed=package[1] == "FAIL", rest=package[3] or "")

    def close(self) -> None:
        """Tests whose package never came to its end."""
        for name, status in self._ended:
            self.ends.add(name, status)
        self._ended, self._running = [], set()

    def _result(self, indent: int, name: str, status: Status) -> None:
        if indent % _DEPTH or indent > _DEPTH * name.count("/"):
            return
        if self._has_begins:
            if name not in self._running:
                return
            self._running.discard(name)
        self._ended.append((name, status))

    def _package(self, package: str, *, has_failed: bool, rest: str) -> None:
        self.is_complete = True
        if rest.endswith(_BROKEN):  # it is told before, between or behind those that are built, and is the end of none of them
            self.errors.append(package)
            return
        if has_failed and not any(status is Status.FAILED for _, status in self._ended):
            self.errors.append(package)
        for name, status in self._ended:
            self._note(package, name, status)
        self._ended, self._running = [], set()

    def _note(self, package: str, name: str, status: Status) -> None:
        self.ends.add(name, status)
        for parting in ("/", ".", "::"):
            self.qualified.add(f"{package}{parting}{name}", status)

    def _event(self, line: str) -> bool:
        """A line of `-json`."""
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(event, dict) or not isinstance(event.get("Action"), str):
            return False
        package, name = str(event.get("Package") or event.get("ImportPath") or ""), event.get("Test")
        status = _ACTIONS.get(event["Action"])
        if isinstance(name, str) and name:
            if status is not None:
                self._note(package, name, status)
                if status is Status.FAILED:
                    self._failed_in.add(package)
        elif event["Action"] == "build-fail" or (status is Status.FAILED and package not in self._failed_in):
            self.errors.append(package)
        elif status is not None:
            self.is_complete = True
        return True


def parse_go(log: str) -> ParsedLog:
    """See the head of this file."""
    reader = _Reader()
    for line in lines_of(log):
        reader.read(line)
    reader.close()
    return parsed_log(reader.ends, reader.qualified, reader.errors, {} if reader.is_complete else None)
