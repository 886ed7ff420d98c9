"""The steps of `ops/launch test`, in the order CI runs them, each with its seconds.

All steps run even when one failed: a person sees everything that is wrong at once. A step fails by its own exit code. A folder
that has no tests is said so and is no failure; a run in which pytest executed nothing at all is one.
"""

import contextlib
import os
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.launcher import child
from ops.launcher.environment import Environment
from ops.launcher.servers import ServerLeg, for_pytest
from ops.launcher.terminal import bold, say

_NO_TESTS_COLLECTED = 5
"""Pytest's exit code for it."""
_OURS_TO_PASS_ON = ("ROLLSTREAM_PYTHON", "ROLLSTREAM_VLLM_PYTHON", "ROLLSTREAM_TEST_", "ROLLSTREAM_REQUIRE_")
"""Settings meant for tests. All others stay out: a person's ROLLSTREAM_REDIS_URL must not become the server that tests flush."""


_CORES = os.cpu_count() or 1
PROCESSES = min(8, 2 * _CORES)
"""Pytest processes, each with a server of its own. Tests wait for half of their time and more (leases, deadlines, processes that start),
so two share a core: on two cores the quick ones took 127 s in 2 processes, 92 in 3, 81 in 4 and 88 in 5. Each costs 3 s to collect what
there is."""
COMPANIES = min(4, _CORES)
"""Of tests that have a company of processes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One check: a module run by the environment's Python, in the project's folder."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()
    test_folders: tuple[str, ...] = ()
    """For pytest: the folders under `tests/`."""
    is_quick: bool = False
    """Whether `--quick` runs it."""


STEPS = (
    Step(name="format", module="ruff", arguments=("format", "--check"), is_quick=True),
    Step(name="lint", module="ruff", arguments=("check",), is_quick=True),
    Step(name="types", module="mypy", is_quick=True),
    Step(name="imports", module="ops.check_imports", is_quick=True),
    Step(
        name="tests",
        module="pytest",
        arguments=("-n", str(PROCESSES), "--dist", "worksteal"),
        test_folders=("unit", "integration", "contract", "model"),
    ),
    Step(
        name="quick",
        module="pytest",
        arguments=("-m", "not slow", "--hypothesis-profile", "quick", "-n", str(PROCESSES), "--dist", "worksteal"),
        test_folders=("unit", "integration", "contract", "cases"),
        is_quick=True,
    ),
    Step(name="faults", module="pytest", arguments=("-n", str(COMPANIES), "--dist", "worksteal"), test_folders=("faults",)),
    Step(name="cases", module="pytest", test_folders=("cases",)),
    Step(name="e2e", module="pytest", test_folders=("e2e",)),
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


def choose(names: Sequence[str], *, quick: bool) -> list[Step]:
    """The steps asked for by name; without names all that belong to the full or to the quick run."""
    if names:
        return [step for step in STEPS if step.name in names]
    return [step for step in STEPS if (step.is_quick if quick else step.name != "quick")]


def run(environment: Environment, steps: Sequence[Step], legs: Sequence[ServerLeg], *, quick: bool, strict: bool) -> int:
    """Run the steps and print what came of them; returns the exit code.

    Args:
        quick: one server instead of all.
        strict: a leg that is missing fails the run.
    """
    found = [leg for leg in legs if leg.path is not None]
    used = found[:1] if quick else legs
    environ = _environ(os.environ) | for_pytest(used, require_all=strict)
    has_tests = any(step.module == "pytest" for step in steps)
    if has_tests:
        say(f"Servers: {' · '.join(f'{leg.name} {leg.version}' for leg in used if leg.path) or 'none'}")
    results = []
    with tempfile.TemporaryDirectory(prefix="rollstream-checks-") as reports:
        for step in steps:
            result = _run_step(environment, step, environ, Path(reports) / f"{step.name}.xml")
            results.append(result)
            say(f"{'ok' if result.code == 0 else bold(f'FAILED (exit {result.code})')}: {step.name}, {result.took_s:.1f} s")
    return _sum_up(results, legs if has_tests and not quick else found, has_tests=has_tests, strict=strict)


def _environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Ours for a check: without settings of a person's own Rollstream, and without paths to other people's modules.

    Compiled files are kept: tests start hundreds of processes, each of which would compile all that it imports.
    """
    dropped = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"}
    is_kept = {name: not name.startswith("ROLLSTREAM_") or name.startswith(_OURS_TO_PASS_ON) for name in environ}
    return {name: value for name, value in environ.items() if is_kept[name] and name not in dropped}


def _run_step(environment: Environment, step: Step, environ: Mapping[str, str], report: Path) -> Result:
    result = Result(name=step.name)
    arguments = [*step.arguments]
    if step.module == "pytest":
        folders = [f"tests/{name}" for name in step.test_folders]
        have_tests = [folder for folder in folders if any((environment.root / folder).rglob("test_*.py"))]
        without = [folder for folder in folders if folder not in have_tests]
        result.note = f"no tests in {', '.join(without)}" if without else ""
        if not have_tests:
            say(f"\n{bold(step.name)}: {result.note}")
            return result
        arguments = [f"--junitxml={report}", *step.arguments, *have_tests]
    say(f"\n{bold(step.name)}: {' '.join([step.module, *(part for part in arguments if not part.startswith('--junitxml'))])}")
    started = time.monotonic()
    result.code = child.run([environment.python, "-m", step.module, *arguments], cwd=environment.root, env=environ)
    result.took_s = time.monotonic() - started
    if step.module == "pytest":
        _count(result, report)
        if result.code == _NO_TESTS_COLLECTED:
            result.code, result.note = 0, "pytest found nothing to run"
    return result


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


def _sum_up(results: Sequence[Result], legs: Sequence[ServerLeg], *, has_tests: bool, strict: bool) -> int:
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
    if failed:
        say(bold(f"Not all is well: {'; '.join(failed)}"))
    return 1 if failed else 0
