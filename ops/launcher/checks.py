"""Runs the steps of `ops/launch test`, in the order CI runs them, each with its seconds.

All steps run even when one failed: a person sees everything that is wrong at once. A step fails by its own exit code. A folder
that has no tests is said so and is no failure; a run in which pytest executed nothing at all is one.

The checks before the tests need one core. Beside them all tests are collected once: pytest rewrites the asserts of each file that it
imports and keeps what it made, and processes that begin together would each make it, for all files. On two cores collecting
`tests` takes four processes 67 s of processor time where nothing is kept, and 30 s where all is.

Steps that run at once speak one after the other, and a second look at what failed waits until all of them have ended: it is alone.
"""

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ops.launcher import child, promtool
from ops.launcher.environment import Environment
from ops.launcher.legs import Leg
from ops.launcher.sandboxes import Ground
from ops.launcher.servers import for_pytest
from ops.launcher.step_run import Result, StepRun
from ops.launcher.steps import COLLECT, Step
from ops.launcher.terminal import bold, say

_OURS_TO_PASS_ON = ("ROLLSTREAM_PYTHON", "ROLLSTREAM_VLLM_PYTHON", "ROLLSTREAM_TEST_", "ROLLSTREAM_REQUIRE_")
"""Settings meant for tests. All others stay out: a person's ROLLSTREAM_REDIS_URL must not become the server that tests flush."""


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
    results: list[Result] = []
    names = {step.name for step in steps}
    with tempfile.TemporaryDirectory(prefix="rollstream-checks-") as reports, contextlib.ExitStack() as beside:
        collecting: child.Beside | None = None
        if has_tests and steps[0].module != "pytest":
            collecting = beside.enter_context(child.beside([environment.python, *COLLECT], cwd=environment.root, env=environ))
        for step in steps:
            if step.beside in names:
                continue
            if step.module == "pytest" and collecting is not None:
                collecting.wait()  # whatever came of it: a step says what is wrong with its own tests
            at_once = [step, *(other for other in steps if other.beside == step.name)]
            results += _run_at_once([StepRun(ground, each, environ, Path(reports), strict=strict) for each in at_once])
    judged = [*(legs if has_tests and not quick else found), *(ground.legs if has_sandboxes else ()), *([checker] if checker else ())]
    return _sum_up(results, judged, has_tests=has_tests, strict=strict)


def _environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Ours for a check: without settings of a person's own Rollstream, and without paths to other people's modules.

    Compiled files are kept: tests start hundreds of processes, each of which would compile all that it imports.
    """
    dropped = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"}
    is_kept = {name: not name.startswith("ROLLSTREAM_") or name.startswith(_OURS_TO_PASS_ON) for name in environ}
    return {name: value for name, value in environ.items() if is_kept[name] and name not in dropped}


def _run_at_once(runs: Sequence[StepRun]) -> list[Result]:
    """The first in the foreground, the others beside it."""
    first, *others = runs
    with contextlib.ExitStack() as stack:
        processes = [other.begin(stack) for other in others]

        def look() -> None:
            for process in filter(None, processes):
                process.look()

        first.run(look if others else None)
        for other, process in zip(others, processes, strict=True):
            other.end(process)
    for each in runs:
        each.look_again()
        result = each.result
        say(f"{'ok' if result.code == 0 else bold(f'FAILED (exit {result.code})')}: {result.name}, {result.took_s:.1f} s")
    return [each.result for each in runs]


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
