"""Judges a program by a program of tests, as HumanEval and MBPP have them, without bringing the two together.

The tests hold the expected values, and a program that runs beside them can read them or change what they see. So the tests run alone
(`inside/judge.py`) and say what they call; the program under judgement runs alone and answers (`inside/batch.py`); the tests run again with
the answers, until they ask nothing new. Most tests take two rounds. The tests run in a sandbox in which no program ever ran.
"""

from __future__ import annotations

import json

from workers.graders.code.problem import AssertTest, CodeTests
from workers.graders.code.report import failure_of
from workers.graders.code.runs import GRADER, JUDGE, CleanSandbox, Ran, Run, verdict_without
from workers.graders.code.verdicts import TestVerdict, Verdict
from workers.graders.errors import GraderError

MOST_ROUNDS = 20
"""Each one answers all that can be asked without the answers of the next; honest tests take two or three."""


async def judge_apart(source: bytes, test: AssertTest, tests: CodeTests, sandbox: CleanSandbox) -> TestVerdict:
    """The verdict of one program of tests.

    Raises:
        GraderError: the tests are none, or came to no end with these answers.
        SandboxError: no sandbox could be had.
    """
    answers: list[list[object]] = []
    own_s, peak_bytes = 0.0, 0
    for _ in range(MOST_ROUNDS):
        said = _said_by_tests(await sandbox.run_apart(_tests_run(test, tests, answers)), tests)
        if "asked" not in said:
            verdict, why = _outcome(said)
            return TestVerdict(verdict=verdict, why=why, own_s=own_s, peak_bytes=peak_bytes)
        requests = said["asked"]
        if not isinstance(requests, list):
            raise GraderError(f"the tests asked {str(requests)[:100]}", grader=GRADER)
        run = Run(kind="batch", program=source, given=json.dumps(requests).encode(), entry=tests.entry, limits=tests.limits)
        ran = (await sandbox.run_round([run]))[0]
        if ran.report is None:
            return verdict_without(ran)
        failed = failure_of(ran.report, tests.limits, ran.notices)
        if failed is not None:
            return failed
        found = _answers(ran.report.result, len(requests))
        if found is None:
            return TestVerdict(verdict=Verdict.RUNTIME_ERROR, why="it ended before its functions returned", own_s=ran.report.own_s)
        answers = [[request, answer] for request, answer in zip(requests, found, strict=True)]
        own_s, peak_bytes = max(own_s, ran.report.own_s), max(peak_bytes, ran.report.peak_bytes)
    raise GraderError(f"the tests still ask something new after {MOST_ROUNDS} rounds", grader=GRADER)


def _tests_run(test: AssertTest, tests: CodeTests, answers: list[list[object]]) -> Run:
    given = {"setup": test.setup, "source": test.source, "answers": answers}
    return Run(kind=JUDGE, program=b"", given=json.dumps(given).encode(), entry=tests.entry, limits=tests.limits)


def _said_by_tests(ran: Ran, tests: CodeTests) -> dict[str, object]:
    if ran.report is None:
        raise GraderError(f"the tests came to no end: {ran.why}", grader=GRADER)
    failed = failure_of(ran.report, tests.limits, ran.notices)
    if failed is not None:
        raise GraderError(f"the tests came to {failed.verdict} with these answers: {failed.why}", grader=GRADER)
    said = json.loads(ran.report.result)
    if "broken" in said:
        raise GraderError(f"the tests cannot be run: {said['broken']}", grader=GRADER)
    return dict(said)


def _outcome(said: dict[str, object]) -> tuple[Verdict, str]:
    if "passed" in said:
        return Verdict.ACCEPTED, ""
    if "failed" in said:
        return Verdict.WRONG_ANSWER, str(said["failed"])
    return Verdict.RUNTIME_ERROR, str(said["raised"])


def _answers(result: bytes, asked: int) -> list[dict[str, object]] | None:
    """The program's answers; None when these are none."""
    try:
        found = json.loads(result)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or len(found) != asked:
        return None
    return found if all(_is_answer(one) for one in found) else None


def _is_answer(one: object) -> bool:
    if not isinstance(one, dict) or len(one) != 1:
        return False
    if "raised" in one:
        raised = one["raised"]
        return isinstance(raised, list) and len(raised) == 2 and all(isinstance(part, str) for part in raised)
    return "value" in one or "object" in one
