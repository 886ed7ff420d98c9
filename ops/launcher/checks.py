"""The steps of `ops/launch test`, in the order CI runs them, each with its seconds.

All steps run even when one failed: a person sees everything that is wrong at once. A step fails by its own exit code. A folder
that has no tests is said so and is no failure; a run in which pytest executed nothing at all is one.

Up to `LOOKED_AT_AGAIN` tests of a step that failed are run again, alone and twice. One that passes both times is `unsteady`: its first
failure stands above, its name in the summary, and the step does not fail for it. Thousands of tests share two cores with what other
people run there, and a step that a moment of another process turns red is one that people learn not to read. An unsteady test is a bug
all the same, of the test or of the product: mend it. More of them at once are no accident.

The checks before the tests need one core. Beside them all tests are collected once: pytest rewrites the asserts of each file that it
imports and keeps what it made, and processes that begin together would each make it, for all files. On two cores collecting
`tests` takes four processes 67 s of processor time where nothing is kept, and 30 s where all is.

All tests but those of sandboxes are one step, `whole`: each run of pytest collects in every process and ends with one process that others
wait for. Tests of fleets wait for half of their time, and beside them the others have the cores. Its parts can be asked for by name.
"""

import contextlib
import os
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.launcher import child, promtool
from ops.launcher.environment import Environment
from ops.launcher.legs import Leg
from ops.launcher.sandboxes import Ground
from ops.launcher.servers import for_pytest
from ops.launcher.terminal import bold, say

_NO_TESTS_COLLECTED = 5
_TESTS_FAILED = 1
"""Pytest's exit codes for them."""
_OURS_TO_PASS_ON = ("ROLLSTREAM_PYTHON", "ROLLSTREAM_VLLM_PYTHON", "ROLLSTREAM_TEST_", "ROLLSTREAM_REQUIRE_")
"""Settings meant for tests. All others stay out: a person's ROLLSTREAM_REDIS_URL must not become the server that tests flush."""


_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
PROCESSES = min(8, 2 * _CORES)
"""Pytest processes, each with a server of its own. Tests wait for half of their time and more (leases, deadlines, processes that start),
so two share a core: on two cores the quick ones took 127 s in 2 processes, 92 in 3, 81 in 4 and 88 in 5. Each costs 3 s to collect what
there is."""
COMPANIES = min(4, _CORES + 1)
"""Of tests that have a company of processes each, and wait for them: in two at once those of `faults` take 230 s of processor
time in 440 s of tests."""


LOOKED_AT_AGAIN = 5
"""Failed tests of a step that are run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One check: a module run by the environment's Python, in the project's folder."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    test_folders: tuple[str, ...] = ()
    """For pytest: folders and files under `tests/`, or patterns of them."""
    is_for_sandboxes: bool = False
    """Whether it needs the ground of the sandboxes' tests, and runs as the user of these. No other step runs what lies in its folders."""
    is_quick: bool = False
    """Whether `--quick` runs it."""
    is_part: bool = False
    """Whether the full run has its tests in a larger step; it is run by name only."""

    @property
    def checks_alerts(self) -> bool:
        """Whether it has the tests of alerts, which want promtool."""
        return not self.is_for_sandboxes and "unit" in self.test_folders


SANDBOX_FOLDERS = (
    "contract/sandbox*",
    "integration/sandbox*",
    "integration/images*",
    "faults/*sandbox*",
    "cases/*sandbox*",
    "e2e/*sandbox*",
)
"""Tests that start sandboxes with walls, which root may not: folders, and files among others."""

COLLECT = ("-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider", "tests")

STEPS = (
    Step(name="format", module="ruff", arguments=("format", "--check"), is_quick=True),
    Step(name="lint", module="ruff", arguments=("check",), is_quick=True),
    Step(name="types", module="mypy", is_quick=True),
    Step(name="imports", module="ops.check_imports", is_quick=True),
    Step(
        name="whole",
        module="pytest",
        arguments=("-n", str(PROCESSES), "--dist", "worksteal"),
        test_folders=("unit", "integration", "contract", "model", "faults", "cases", "e2e"),
    ),
    Step(
        name="sandboxes",
        module="pytest",
        # the tree may be somebody else's: nothing is written into it
        arguments=("-n", str(PROCESSES), "--dist", "worksteal", "-p", "no:cacheprovider"),
        test_folders=SANDBOX_FOLDERS,
        is_for_sandboxes=True,
    ),
    Step(
        name="quick",
        module="pytest",
        # for root every test of a sandbox with walls is left out: their number is enough
        arguments=("-m", "not slow", "--hypothesis-profile", "quick", "-n", str(PROCESSES), "--dist", "worksteal", "-r", "fE"),
        test_folders=("unit", "integration", "contract", "cases"),
        is_quick=True,
    ),
    Step(
        name="tests",
        module="pytest",
        arguments=("-n", str(PROCESSES), "--dist", "worksteal"),
        test_folders=("unit", "integration", "contract", "model"),
        is_part=True,
    ),
    Step(name="faults", module="pytest", arguments=("-n", str(COMPANIES), "--dist", "worksteal"), test_folders=("faults",), is_part=True),
    Step(name="cases", module="pytest", arguments=("-n", str(PROCESSES), "--dist", "worksteal"), test_folders=("cases",), is_part=True),
    Step(name="e2e", module="pytest", arguments=("-n", str(COMPANIES), "--dist", "worksteal"), test_folders=("e2e",), is_part=True),
)


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


def choose(names: Sequence[str], *, quick: bool) -> list[Step]:
    """The steps asked for by name; without names all that belong to the full or to the quick run."""
    if names:
        return [step for step in STEPS if step.name in names]
    return [step for step in STEPS if (step.is_quick if quick else step.name != "quick" and not step.is_part)]


def run(
    environment: Environment,
    steps: Sequence[Step],
    legs: Sequence[Leg],
    ground: Ground,
    checker: Leg | None = None,
    *,
    quick: bool,
    strict: bool,
) -> int:
    """Run the steps and print what came of them; returns the exit code.

    Args:
        legs: the servers.
        checker: promtool; None = no step wants it.
        quick: one server instead of all.
        strict: a leg that is missing fails the run.
    """
    found = [leg for leg in legs if leg.path is not None]
    used = found[:1] if quick else legs
    environ = _environ(os.environ) | for_pytest(used, require_all=strict)
    if checker is not None:
        environ |= promtool.for_pytest(checker, is_required=strict)
    has_tests = any(step.module == "pytest" for step in steps)
    has_sandboxes = any(step.is_for_sandboxes for step in steps)
    if has_tests:
        say(f"Servers: {' · '.join(f'{leg.name} {leg.version}' for leg in used if leg.path) or 'none'}")
    if has_sandboxes:
        say(f"Sandboxes: {' · '.join(f'{leg.name} {leg.version}'.rstrip() for leg in ground.legs if leg.path) or 'bare processes'}")
    results = []
    with tempfile.TemporaryDirectory(prefix="rollstream-checks-") as reports, contextlib.ExitStack() as beside:
        collected: Callable[[], int] | None = None
        if has_tests and steps[0].module != "pytest":
            collected = beside.enter_context(child.beside([environment.python, *COLLECT], cwd=environment.root, env=environ))
        for step in steps:
            if step.module == "pytest" and collected is not None:
                collected()  # whatever came of it: a step says what is wrong with its own tests
            result = _run_step(ground, step, environ, Path(reports) / f"{step.name}.xml", strict=strict)
            results.append(result)
            say(f"{'ok' if result.code == 0 else bold(f'FAILED (exit {result.code})')}: {step.name}, {result.took_s:.1f} s")
    judged = [*(legs if has_tests and not quick else found), *(ground.legs if has_sandboxes else ()), *([checker] if checker else ())]
    return _sum_up(results, judged, has_tests=has_tests, strict=strict)


def _environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Ours for a check: without settings of a person's own Rollstream, and without paths to other people's modules.

    Compiled files are kept: tests start hundreds of processes, each of which would compile all that it imports.
    """
    dropped = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"}
    is_kept = {name: not name.startswith("ROLLSTREAM_") or name.startswith(_OURS_TO_PASS_ON) for name in environ}
    return {name: value for name, value in environ.items() if is_kept[name] and name not in dropped}


def _run_step(ground: Ground, step: Step, environ: Mapping[str, str], report: Path, *, strict: bool) -> Result:
    result = Result(name=step.name)
    environment = ground.environment
    arguments = [*step.arguments]
    if step.module == "pytest":
        folders, without = _folders_with_tests(environment.root, step)
        if without and not (folders and step.is_for_sandboxes):
            result.note = f"no tests in {', '.join(without)}"
        if not folders:
            say(f"\n{bold(step.name)}: {result.note}")
            return result
        arguments = [f"--junitxml={report}", "-o", "junit_family=xunit1", *step.arguments, *folders]
        if not (step.is_for_sandboxes or step.is_quick):
            arguments += [f"--ignore-glob={environment.root}/tests/{pattern}" for pattern in SANDBOX_FOLDERS]
    shown = [part for part in arguments if not part.startswith(("--junitxml", "--ignore-glob", "-o", "junit_family"))]
    say(f"\n{bold(step.name)}: {' '.join([step.module, *shown])}")

    def run_module(arguments: Sequence[str]) -> int:
        command: list[str | Path] = [environment.python, "-m", step.module, *arguments]
        if not step.is_for_sandboxes:
            return child.run(command, cwd=environment.root, env=environ)
        if ground.user is not None:
            report.parent.chmod(0o711)
            report.touch()
            os.chown(report, ground.user.pw_uid, ground.user.pw_gid)
            command = [*ground.command(command, needed=[report.parent])]
        return child.run(command, cwd=environment.root, env=ground.environ(environ, require_all=strict))

    started = time.monotonic()
    result.code = run_module(arguments)
    if step.module == "pytest":
        _count(result, report)
        if result.code == _NO_TESTS_COLLECTED:
            result.code, result.note = 0, "pytest found nothing to run"
        if result.code == _TESTS_FAILED and not step.is_quick:
            _look_again(result, failed_tests(report), lambda tests: run_module(["-p", "no:cacheprovider", "-p", "no:randomly", *tests]))
    result.took_s = time.monotonic() - started
    return result


def _look_again(result: Result, failed: Sequence[str], run_tests: Callable[[Sequence[str]], int]) -> None:
    """Run the step's failed tests again, alone: its result is as if those that pass twice had not failed."""
    if not 0 < len(failed) <= LOOKED_AT_AGAIN or len(failed) != result.failed:
        return
    say(f"\n{bold(result.name)}: a second look, alone and twice, at {', '.join(failed)}")
    steady = [test for test in failed if any(run_tests([test]) != 0 for _ in range(2))]
    result.unsteady = tuple(test for test in failed if test not in steady)
    result.failed -= len(result.unsteady)
    result.passed += len(result.unsteady)
    result.code = _TESTS_FAILED if steady else 0


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


def _sum_up(results: Sequence[Result], legs: Sequence[Leg], *, has_tests: bool, strict: bool) -> int:
    say(f"\n{bold('Summary')}")
    for result in results:
        verdict = "ok" if result.code == 0 else "FAILED"
        say(f"  {verdict:6} {result.took_s:7.1f} s  {result.name}{f'  ({result.note})' if result.note else ''}")
    failed = [result.name for result in results if result.code]
    missing = [leg for leg in legs if leg.path is None]
    if missing:
        say("  left out:")
        for leg in missing:
            say(f"    {leg.name}: {leg.why_missing}\n      to run it: {leg.how_to_enable}")
    if strict and missing:
        failed.append("left out: " + ", ".join(leg.name for leg in missing))
    if has_tests:
        passed, broken, skipped = (sum(getattr(result, field) for result in results) for field in ("passed", "failed", "skipped"))
        if passed + broken == 0:
            failed.append("no test was executed")
        say(f"tests: {passed} passed, {broken} failed, {skipped} skipped")
    unsteady = [test for result in results for test in result.unsteady]
    if unsteady:
        say(f"{bold('unsteady')}: failed once, passed twice alone; a bug to mend, its first failure is above")
        for test in unsteady:
            say(f"    {test}")
    if failed:
        say(bold(f"Not all is well: {'; '.join(failed)}"))
    return 1 if failed else 0
