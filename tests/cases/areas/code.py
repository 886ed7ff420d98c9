"""Cases of grading programs, through `grade_program`: behind walls where that works here, else without.

A case names its kind of sandbox in `input.sandbox`; without, it runs in the first of `PREFERRED` that works.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from pipeline.testing import wait_until
from pipeline.testing.wait import WaitedTooLong
from tests.cases.case import BadCase, Case, Check, Difference, text_of
from tests.contract.sandbox.kinds import KINDS
from workers.graders import GraderError
from workers.graders.code import AssertTest, CallTest, CodeTests, CodeVerdict, RunLimits, StdioTest, Test, grade_program, sandbox_limits
from workers.graders.code.runs import WALL_PER_OWN
from workers.sandbox import Isolation, Sandbox, SandboxError, SandboxOwner, SandboxProvider, SandboxSpec
from workers.sandbox.local.folder import remove_tree

PREFERRED = ("bubblewrap", "apptainer", "process")
KNOWN = frozenset({"passed", "verdicts", "verdicts_any_of", "max_wall_s", "repeat", "zombies_after"})


@asynccontextmanager
async def area() -> AsyncIterator[Check]:
    """One provider a kind of sandbox for all cases."""
    folder = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))  # a short path: sockets live below it
    providers: dict[str, SandboxProvider] = {}
    opening = asyncio.Lock()  # cases may be run side by side
    try:
        async with AsyncExitStack() as stack:

            async def check(case: Case) -> list[Difference]:
                name = case.input.get("sandbox") or next(name for name in PREFERRED if not KINDS[name].why_not())
                async with opening:
                    if name not in providers:
                        providers[name] = await stack.enter_async_context(KINDS[name].open(folder / name))
                return await _check(providers[name], case)

            yield check
    finally:
        remove_tree(folder)


async def _check(provider: SandboxProvider, case: Case) -> list[Difference]:
    unknown = set(case.expect) - KNOWN
    if unknown:
        raise BadCase(f"unknown expectations: {sorted(unknown)}")
    tests = _tests(case.input)
    found: list[Difference] = []
    started = time.monotonic()
    most_s = case.expect.get("max_wall_s", 300)
    left = int(case.expect.get("repeat", 1))
    while left > 0 and not found:
        side_by_side = min(left, 5)
        left -= side_by_side
        for different, may_wait_s in await asyncio.gather(*(_different(provider, case, tests) for _ in range(side_by_side))):
            found += different
            most_s += may_wait_s
    if time.monotonic() - started > most_s:
        found.append(Difference("seconds", f"at most {most_s:g}", round(time.monotonic() - started, 2)))
    if "zombies_after" in case.expect:
        try:  # of cases beside this one there may be some, which are taken note of in a moment
            await wait_until(lambda: _zombies() <= case.expect["zombies_after"], "ended children were taken note of", timeout_s=10)
        except WaitedTooLong:
            found.append(Difference("zombies of this process", case.expect["zombies_after"], _zombies()))
    return found


async def _different(provider: SandboxProvider, case: Case, tests: CodeTests) -> tuple[list[Difference], float]:
    """What is different, and the seconds that its programs may have waited for a core.

    A program that was ended in time may have waited for its time on a busy machine: an endless loop of two seconds takes twelve by the
    clock when five others loop beside it. One that kept its runner from saying how it went may not.
    """
    owner = SandboxOwner(job_id=f"case:{secrets.token_hex(4)}", attempt=1, boot_id="cases")
    at_once = int(case.input.get("at_once", 2))
    isolation = Isolation.NONE if provider.backend == "process" else Isolation.ISOLATED

    async def start() -> Sandbox:
        return await provider.start(SandboxSpec(isolation=isolation, limits=sandbox_limits(tests.limits, at_once)), owner)

    try:
        verdict: CodeVerdict | None = await grade_program(
            text_of(case.input, "code"),
            tests,
            start,
            at_once=at_once,
            stop_at_failure=bool(case.input.get("stop_at_failure")),
        )
        names, why = (
            [str(test.verdict) for test in verdict.tests] if verdict else [],
            [test.why for test in verdict.tests] if verdict else [],
        )
    except (GraderError, SandboxError) as broken:
        verdict, names, why = None, ["grader_error"], [str(broken)]
    found: list[Difference] = []
    passed = case.expect["passed"] if isinstance(case.expect["passed"], list) else [case.expect["passed"]]
    if (verdict is not None and verdict.passed) not in passed:
        found.append(Difference("passed", case.expect["passed"], f"{names} {why}"))
    if "verdicts" in case.expect and names != case.expect["verdicts"]:
        found.append(Difference("verdicts", case.expect["verdicts"], f"{names} {why}"))
    if "verdicts_any_of" in case.expect and not all(name in case.expect["verdicts_any_of"] for name in names):
        found.append(Difference("verdicts", f"each one of {case.expect['verdicts_any_of']}", f"{names} {why}"))
    reported = [test.own_s for test in verdict.tests if test.own_s > 0] if verdict else []
    return found, sum(max(0.0, WALL_PER_OWN * tests.limits.time_s - own_s) for own_s in reported)


def _tests(given: Mapping[str, Any]) -> CodeTests:
    return CodeTests(
        tests=[_test(given["kind"], test) for test in given["tests"]],
        entry=given.get("entry", ""),
        limits=RunLimits(**given["limits"]) if "limits" in given else RunLimits(),
        float_tol=given.get("float_tol"),
    )


def _test(kind: str, test: Mapping[str, Any]) -> Test:
    if kind == "stdio":
        return StdioTest(stdin=text_of(test, "stdin"), expected=text_of(test, "expected"))
    if kind == "call":
        expected = text_of(test, "expected") if "expected_gen" in test else test["expected"]
        return CallTest(arguments=test["args"], accepted=[expected])
    if kind == "assert":
        return AssertTest(source=text_of(test, "source"), setup=test.get("setup", ""))
    raise BadCase(f"unknown kind {kind!r}")


def _zombies() -> int:
    """Children of this process that have ended and that nobody took note of."""
    found = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        found += state == "Z" and int(parent) == os.getpid()
    return found
