"""Judges a program by a program of tests, as HumanEval and MBPP have them, without bringing the two together.

The tests hold the expected values, and a program that runs beside them can read them or change what they see. So the tests run alone
(`inside/judge.py`) and say what they call; the program under judgement runs alone and answers (`inside/batch.py`); the tests run again with
the answers, until they ask nothing new. Most tests take two rounds. The tests run in a sandbox in which no program ever ran.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from workers.graders.code.problem import AssertTest, CodeTests, RunLimits
from workers.graders.code.report import failure_of
from workers.graders.code.runs import GRADER, JUDGE, CleanSandbox, Ran, Run, verdict_without
from workers.graders.code.verdicts import TestVerdict, Verdict
from workers.graders.errors import GraderError

MOST_ROUNDS = 20
"""Each one answers all that can be asked without the answers of the next; honest tests take two or three."""
TOGETHER = 8
"""Programs of tests whose rounds are made together: a round costs two sandboxes, however many take part in it."""
TESTS_S, MOST_ASKED_BYTES = 10.0, 32 << 20
"""The tests have their own limits: what they ask holds all their inputs."""
MOST_NOTED, MOST_NOTED_BYTES = 256, 100_000

Requests = Sequence[object]
WhatIsLeft = Callable[[Sequence[TestVerdict]], TestVerdict | None]


@dataclass(slots=True)
class _Judged:
    """One program of tests on its way to a verdict."""

    test: AssertTest
    answers: list[list[object]] = field(default_factory=list)
    requests: Requests = ()
    own_s: float = 0.0
    peak_bytes: int = 0
    verdict: TestVerdict | None = None


class _FirstQuestions:
    """What programs of tests ask when they know nothing yet, which is the same for every program under judgement."""

    def __init__(self) -> None:
        self._noted: OrderedDict[tuple[AssertTest, str], Requests] = OrderedDict()

    def get(self, test: AssertTest, entry: str) -> Requests:
        """Empty when they are not known."""
        found = self._noted.get((test, entry), ())
        if found:
            self._noted.move_to_end((test, entry))
        return found

    def note(self, test: AssertTest, entry: str, requests: Requests, size: int) -> None:
        if size <= MOST_NOTED_BYTES:
            self._noted[(test, entry)] = requests
            while len(self._noted) > MOST_NOTED:
                self._noted.popitem(last=False)


_first_questions = _FirstQuestions()


async def judge_apart(
    source: bytes, asserts: Sequence[AssertTest], tests: CodeTests, sandbox: CleanSandbox, *, at_once: int, what_is_left: WhatIsLeft
) -> list[TestVerdict]:
    """The verdicts of programs of tests, `TOGETHER` at most, in order.

    Args:
        at_once: runs side by side.
        what_is_left: given the verdicts so far, what all later ones come to; None = they are to be found.

    Raises:
        GraderError: the tests are none, or came to no end with these answers.
        SandboxError: no sandbox could be had.
    """
    judged = [_Judged(test, requests=_first_questions.get(test, tests.entry)) for test in asserts]
    await _ask_tests([one for one in judged if not one.requests], tests, sandbox, at_once)
    for _ in range(MOST_ROUNDS):
        is_first = not any(one.answers for one in judged)
        for some in _some(_open(judged), at_once, first_alone=is_first):
            asking = [one for one in some if one.verdict is None]
            if asking:
                runs = [_batch(source, one, tests) for one in asking]
                for one, ran in zip(asking, await sandbox.run_round(runs), strict=True):
                    _answer(one, ran, tests)
                _leave_out(judged, what_is_left)
        await _ask_tests(_open(judged), tests, sandbox, at_once)
        if not _open(judged):
            return [one.verdict for one in judged if one.verdict is not None]
    raise GraderError(f"the tests still ask something new after {MOST_ROUNDS} rounds", grader=GRADER)


def _open(judged: Sequence[_Judged]) -> list[_Judged]:
    return [one for one in judged if one.verdict is None]


def _some(judged: Sequence[_Judged], at_once: int, *, first_alone: bool = False) -> Iterator[Sequence[_Judged]]:
    """So many at a time; the first one alone where the program is not known yet, which may be none."""
    begin = 0
    while begin < len(judged):
        end = begin + (1 if first_alone and not begin else at_once)
        yield judged[begin:end]
        begin = end


async def _ask_tests(judged: Sequence[_Judged], tests: CodeTests, sandbox: CleanSandbox, at_once: int) -> None:
    """Lets the tests say what they ask with the answers that there are, or what they come to."""
    for some in _some(judged, at_once):
        for one, ran in zip(some, await sandbox.run_apart([_tests_run(one, tests) for one in some]), strict=True):
            said = _said_by_tests(ran, tests)
            if "asked" not in said:
                verdict, why = _outcome(said)
                one.verdict = TestVerdict(verdict=verdict, why=why, own_s=one.own_s, peak_bytes=one.peak_bytes)
                continue
            requests = said["asked"]
            if not isinstance(requests, list):
                raise GraderError(f"the tests asked {str(requests)[:100]}", grader=GRADER)
            if not one.answers:
                _first_questions.note(one.test, tests.entry, requests, len(ran.report.result) if ran.report is not None else 0)
            one.requests = requests


def _answer(one: _Judged, ran: Ran, tests: CodeTests) -> None:
    """Takes the program's answers, or the way it failed."""
    if ran.report is None:
        one.verdict = verdict_without(ran)
        return
    one.verdict = failure_of(ran.report, tests.limits, ran.notices)
    if one.verdict is not None:
        return
    found = _answers(ran.report.result, len(one.requests))
    if found is None:
        one.verdict = TestVerdict(verdict=Verdict.RUNTIME_ERROR, why="it ended before its functions returned", own_s=ran.report.own_s)
        return
    one.answers = [[request, answer] for request, answer in zip(one.requests, found, strict=True)]
    one.own_s, one.peak_bytes = max(one.own_s, ran.report.own_s), max(one.peak_bytes, ran.report.peak_bytes)


def _leave_out(judged: Sequence[_Judged], what_is_left: WhatIsLeft) -> None:
    """Gives those after a failure that is enough what they come to without being run."""
    before: list[TestVerdict] = []
    for one in judged:
        over = what_is_left(before)
        if one.verdict is None and over is not None:
            one.verdict = over
        if one.verdict is not None:
            before.append(one.verdict)


def _batch(source: bytes, one: _Judged, tests: CodeTests) -> Run:
    return Run(kind="batch", program=source, given=json.dumps(one.requests).encode(), entry=tests.entry, limits=tests.limits)


def _tests_run(one: _Judged, tests: CodeTests) -> Run:
    given = {"setup": one.test.setup, "source": one.test.source, "answers": one.answers}
    return Run(kind=JUDGE, program=b"", given=json.dumps(given).encode(), entry=tests.entry, limits=_own_limits(tests))


def _own_limits(tests: CodeTests) -> RunLimits:
    limits = tests.limits
    return replace(limits, time_s=max(TESTS_S, limits.time_s), output_bytes=max(MOST_ASKED_BYTES, limits.output_bytes))


def _said_by_tests(ran: Ran, tests: CodeTests) -> dict[str, object]:
    if ran.report is None:
        raise GraderError(f"the tests came to no end: {ran.why}", grader=GRADER)
    failed = failure_of(ran.report, _own_limits(tests), ran.notices)
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
