"""The grade of a program: each test a run of its own in a sandbox, compared here.

Expected values never enter a sandbox. A test's input goes in, what comes out comes back as bytes or as JSON, and the comparison is made in
the worker: a program that forges its output has to know the answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from workers.graders.code.asserts import TOGETHER, judge_apart
from workers.graders.code.inside.plain import to_plain
from workers.graders.code.problem import AssertTest, CallTest, CodeTests, StdioTest, Test
from workers.graders.code.report import verdict_of
from workers.graders.code.runs import CleanSandbox, Ran, Run, verdict_without
from workers.graders.code.verdicts import CodeVerdict, TestVerdict, Verdict, no_tests
from workers.sandbox.base import Sandbox

INLINE_BYTES = 64 * 1024
"""Output up to which it is compared in the event loop."""
MOST_AT_ONCE = 4
"""Tests of one program side by side; a node grades other programs meanwhile."""


def tests_at_once() -> int:
    """How many tests of a program run side by side here: as many as there are cores to use, and not more than `MOST_AT_ONCE`."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST_AT_ONCE, usable))


async def grade_program(
    program: str,
    tests: CodeTests,
    start: Callable[[], Awaitable[Sandbox]],
    *,
    at_once: int = 1,
    stop_at_failure: bool = False,
    most_overruns: int = 0,
    has_image: bool = False,
) -> CodeVerdict:
    """Runs a program on its tests.

    Args:
        start: makes a sandbox bounded by `sandbox_limits(tests.limits, at_once)`; asked for again when the one before has ended.
        at_once: tests side by side.
        stop_at_failure: run no test after the first that failed; those say `not_run`.
        most_overruns: run no test after so many that came to their limit of time, since each costs all of it; 0 = run all.
        has_image: see `CleanSandbox`.

    Raises:
        GraderError: the grader broke.
        SandboxError: no sandbox could be had, or the node had no time for the program.
    """
    if not tests.tests:
        return no_tests()
    started = time.monotonic()
    source = program.encode("utf-8", "surrogatepass")
    found: list[TestVerdict] = []
    async with CleanSandbox(start, has_image=has_image) as sandbox:
        while len(found) < len(tests.tests):
            over = _what_is_left(found, stop_at_failure, most_overruns)
            if over is not None:
                found += [over] * (len(tests.tests) - len(found))
                break
            asserts = _asserts(tests.tests[len(found) : len(found) + TOGETHER])
            if asserts:
                what_is_left = partial(_what_is_left, stop_at_failure=stop_at_failure, most_overruns=most_overruns, before=tuple(found))
                for verdict in await judge_apart(source, asserts, tests, sandbox, at_once=at_once, what_is_left=what_is_left):
                    found.append(_what_is_left(found, stop_at_failure, most_overruns) or verdict)
                continue
            # the first one alone: a program that is none, or fails, is known by it
            now = _beginning(tests.tests[len(found) : len(found) + (at_once if found else 1)])
            ran = await sandbox.run_round([_run(source, test, tests) for test in now])
            found += [await _verdict(one, test, tests) for one, test in zip(ran, now, strict=True)]
        return CodeVerdict(tests=tuple(found), seconds=time.monotonic() - started, sandboxes=sandbox.made)


def _what_is_left(
    found: Sequence[TestVerdict], stop_at_failure: bool, most_overruns: int, before: Sequence[TestVerdict] = ()
) -> TestVerdict | None:
    """What all tests come to that were not run yet; None = they are to be run."""
    found = (*before, *found)
    broken = next((one for one in found if one.verdict is Verdict.COMPILE_ERROR), None)
    if broken is not None:
        return broken
    overruns = sum(one.verdict is Verdict.TIME_LIMIT for one in found)
    if (stop_at_failure and any(one.verdict is not Verdict.ACCEPTED for one in found)) or 0 < most_overruns <= overruns:
        return TestVerdict(verdict=Verdict.NOT_RUN)
    return None


def _asserts(tests: Sequence[Test]) -> list[AssertTest]:
    """Those that assert, up to the first that does not."""
    found: list[AssertTest] = []
    for test in tests:
        if not isinstance(test, AssertTest):
            break
        found.append(test)
    return found


def _beginning(tests: Sequence[Test]) -> list[StdioTest | CallTest]:
    """Those that are runs of the program alone, up to the first that is not."""
    found: list[StdioTest | CallTest] = []
    for test in tests:
        if isinstance(test, AssertTest):
            break
        found.append(test)
    return found


def _run(source: bytes, test: StdioTest | CallTest, tests: CodeTests) -> Run:
    if isinstance(test, StdioTest):
        return Run(kind="stdio", program=source, given=test.stdin.encode("utf-8", "surrogatepass"), entry="", limits=tests.limits)
    given = json.dumps(to_plain(list(test.arguments))).encode()
    return Run(kind="call", program=source, given=given, entry=tests.entry, limits=tests.limits)


async def _verdict(ran: Ran, test: StdioTest | CallTest, tests: CodeTests) -> TestVerdict:
    if ran.report is None:
        return verdict_without(ran)
    judge = partial(verdict_of, ran.report, test, tests, ran.notices)
    return judge() if len(ran.report.out) + len(ran.report.result) < INLINE_BYTES else await asyncio.to_thread(judge)
