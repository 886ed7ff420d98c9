"""One step of `ops/launch test`: the command that it is, what came of it, and a second look at what failed.

Up to `LOOKED_AT_AGAIN` tests of a step that failed are run again, alone and twice. One that passes both times is `unsteady`: its first
failure stands above, its name in the summary, and the step does not fail for it. Thousands of tests share two cores with what other
people run there, and a step that a moment of another process turns red is one that people learn not to read. An unsteady test is a bug
all the same, of the test or of the product: mend it. More of them at once are no accident.
"""

import contextlib
import os
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.launcher import child
from ops.launcher.sandboxes import Ground
from ops.launcher.steps import SANDBOX_FOLDERS, Step
from ops.launcher.terminal import bold, say

_NO_TESTS_COLLECTED = 5
_TESTS_FAILED = 1
"""Pytest's exit codes for them."""
LOOKED_AT_AGAIN = 5
"""Failed tests of a step that are run again."""


@dataclass(slots=True, kw_only=True)
class Result:
    """What came of one step."""

    name: str
    took_s: float = 0.0
    code: int = 0
    note: str = ""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    unsteady: tuple[str, ...] = ()
    """Tests that failed once and passed twice alone."""


class StepRun:
    """A step that runs once: with `run`, or beside another with `begin` and `end`; then `look_again`.

    Args:
        environ: of its process.
        reports: folder for pytest's own report, and for what a step says while another one speaks.
        strict: a sandbox backend that is missing fails its tests.
    """

    def __init__(self, ground: Ground, step: Step, environ: Mapping[str, str], reports: Path, *, strict: bool) -> None:
        self._ground = ground
        self._step = step
        self._environ = ground.environ(environ, require_all=strict) if step.is_for_sandboxes else environ
        self._report = reports / f"{step.name}.xml"
        self._output = reports / f"{step.name}.txt"
        self.result = Result(name=step.name)
        self._arguments = self._plan()

    def run(self, tick: Callable[[], None] | None = None) -> None:
        """In the foreground.

        Args:
            tick: called now and then while it runs.
        """
        self._announce()
        if self._arguments is None:
            return
        started_s = time.monotonic()
        self._has_ended(self._run_module(self._arguments, tick), time.monotonic() - started_s)

    def begin(self, stack: contextlib.ExitStack) -> child.Beside | None:
        """Beside another one; None where it has nothing to run.

        Args:
            stack: which ends it when it is left.
        """
        if self._arguments is None:
            return None
        with self._output.open("wb") as output:
            return stack.enter_context(
                child.beside(self._command(self._arguments), cwd=self._ground.environment.root, env=self._environ, output=output)
            )

    def end(self, process: child.Beside | None) -> None:
        """Shows what it has said, and what it says until its end."""
        self._announce()
        if process is None:
            return
        with self._output.open("rb") as said:

            def show() -> None:
                while text := said.read(1 << 16):
                    sys.stdout.buffer.write(text)
                sys.stdout.buffer.flush()

            code = process.wait(show)
            show()
        self._has_ended(code, process.took_s)

    def look_again(self) -> None:
        """Runs failed tests again, alone: the result is as if those that pass twice had not failed."""
        result = self.result
        if result.code != _TESTS_FAILED or self._step.module != "pytest" or self._step.is_quick:
            return
        failed = failed_tests(self._report)
        if not 0 < len(failed) <= LOOKED_AT_AGAIN or len(failed) != result.failed:
            return
        started_s = time.monotonic()
        say(f"\n{bold(result.name)}: a second look, alone and twice, at {', '.join(failed)}")
        alone = ("-p", "no:cacheprovider", "-p", "no:randomly")
        steady = [test for test in failed if any(self._run_module([*alone, test]) != 0 for _ in range(2))]
        result.unsteady = tuple(test for test in failed if test not in steady)
        result.failed -= len(result.unsteady)
        result.passed += len(result.unsteady)
        result.code = _TESTS_FAILED if steady else 0
        result.took_s += time.monotonic() - started_s

    def _plan(self) -> list[str] | None:
        """What its module is told; None when there is nothing to run."""
        step, root = self._step, self._ground.environment.root
        if step.module != "pytest":
            return [*step.arguments]
        folders, without = _folders_with_tests(root, step)
        if without and not (folders and step.is_for_sandboxes):
            self.result.note = f"no tests in {', '.join(without)}"
        if not folders:
            return None
        left_out = (
            [] if step.is_for_sandboxes or step.is_quick else [f"--ignore-glob={root}/tests/{pattern}" for pattern in SANDBOX_FOLDERS]
        )
        return [f"--junitxml={self._report}", "-o", "junit_family=xunit1", *step.arguments, *folders, *left_out]

    def _announce(self) -> None:
        if self._arguments is None:
            say(f"\n{bold(self._step.name)}: {self.result.note}")
            return
        shown = [part for part in self._arguments if not part.startswith(("--junitxml", "--ignore-glob", "-o", "junit_family"))]
        say(f"\n{bold(self._step.name)}: {' '.join([self._step.module, *shown])}")

    def _command(self, arguments: Sequence[str]) -> list[str | Path]:
        command: list[str | Path] = [self._ground.environment.python, "-m", self._step.module, *arguments]
        user = self._ground.user
        if not self._step.is_for_sandboxes or user is None:
            return command
        self._report.parent.chmod(0o711)
        self._report.touch()
        os.chown(self._report, user.pw_uid, user.pw_gid)
        return [*self._ground.command(command, needed=[self._report.parent])]

    def _run_module(self, arguments: Sequence[str], tick: Callable[[], None] | None = None) -> int:
        return child.run(self._command(arguments), cwd=self._ground.environment.root, env=self._environ, tick=tick)

    def _has_ended(self, code: int, took_s: float) -> None:
        self.result.code, self.result.took_s = code, took_s
        if self._step.module != "pytest":
            return
        _count(self.result, self._report)
        if code == _NO_TESTS_COLLECTED:
            self.result.code, self.result.note = 0, "pytest found nothing to run"


def failed_tests(report: Path) -> list[str]:
    """What pytest takes to run the failed tests of a report again; what cannot be named so (an error of collecting) is left out."""
    found: list[str] = []
    for case in ET.parse(report).getroot().iter("testcase"):
        file, name, place = case.get("file", ""), case.get("name", ""), case.get("classname", "")
        module = file.removesuffix(".py").replace("/", ".")
        if (case.find("failure") is None and case.find("error") is None) or not file or not place.startswith(module):
            continue
        classes = [part for part in place.removeprefix(module).split(".") if part]
        found.append("::".join([file, *classes, name]))
    return found


def _folders_with_tests(root: Path, step: Step) -> tuple[list[str], list[str]]:
    """The step's folders that hold tests, and those of its names that hold none."""
    found: list[str] = []
    without: list[str] = []
    for name in step.test_folders:
        folders = [path for path in sorted(root.glob(f"tests/{name}")) if path.match("test_*.py") or any(path.rglob("test_*.py"))]
        found += [str(folder.relative_to(root)) for folder in folders]
        if not folders:
            without.append(f"tests/{name}")
    return found, without


def _count(result: Result, report: Path) -> None:
    """Read pytest's own report; a pytest that died wrote none, which its exit code tells."""
    with contextlib.suppress(FileNotFoundError, ET.ParseError):
        for suite in ET.parse(report).getroot().iter("testsuite"):
            total, broken, skipped = (
                int(suite.get("tests", 0)),
                int(suite.get("failures", 0)) + int(suite.get("errors", 0)),
                int(suite.get("skipped", 0)),
            )
            result.failed += broken
            result.skipped += skipped
            result.passed += total - broken - skipped
