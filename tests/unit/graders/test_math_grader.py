"""The grader as a whole, with its processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import psutil
import pytest

from pipeline.testing.wait import wait_until
from workers.graders import GraderError, MathGrader, VerdictKind


@pytest.fixture
async def grader() -> AsyncIterator[MathGrader]:
    async with MathGrader(processes=1, limit_s=10) as grader:
        yield grader


@pytest.fixture
async def hasty_grader() -> AsyncIterator[MathGrader]:
    """For answers that never end; what ends takes a tenth of its limit."""
    async with MathGrader(processes=1, limit_s=1) as grader:
        yield grader


def boxed(answer: str) -> str:
    return rf"So the answer is \boxed{{{answer}}}."


async def test_ordinary_answers_need_no_process(grader: MathGrader) -> None:
    right = await grader.grade(boxed(r"\frac{2}{4}"), r"\frac12")
    wrong = await grader.grade(boxed("0.6"), r"\frac12")

    assert (right.correct, right.kind, right.extracted) == (True, VerdictKind.CORRECT, r"\frac{2}{4}")
    assert (wrong.correct, wrong.kind, wrong.reason) == (False, VerdictKind.WRONG, "other_value")
    assert grader.pids == frozenset()


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ("It is 42.", "no_box"),
        (r"\boxed{7}, or rather \boxed{", "unclosed_box"),
        (boxed(r"42 \text{ or more, I think}"), "not_an_answer"),
        (boxed(""), "empty"),
    ],
)
async def test_no_answer_is_told_from_a_wrong_one(grader: MathGrader, response: str, reason: str) -> None:
    verdict = await grader.grade(response, "42")

    assert (verdict.correct, verdict.kind, verdict.reason) == (False, VerdictKind.UNPARSEABLE, reason)


async def test_what_our_rules_do_not_read_goes_to_algebra(grader: MathGrader) -> None:
    right = await grader.grade(boxed(r"\int_0^1 x\,dx"), r"\frac12")
    wrong = await grader.grade(boxed(r"\int_0^2 x\,dx"), r"\frac12")

    assert (right.kind, right.reason) == (VerdictKind.CORRECT, "algebra")
    assert (wrong.kind, wrong.reason) == (VerdictKind.WRONG, "algebra")
    assert len(grader.pids) == 1


@pytest.mark.slow
async def test_a_long_answer_is_compared_in_a_process(grader: MathGrader) -> None:
    terms = "+".join(f"x^{{{power}}}" for power in range(60))

    verdict = await grader.grade(boxed("+".join(reversed(terms.split("+")))), terms)

    assert verdict.kind is VerdictKind.CORRECT
    assert len(grader.pids) == 1


@pytest.mark.slow
async def test_an_answer_that_never_ends_is_wrong_because_the_reference_does(hasty_grader: MathGrader) -> None:
    verdict = await hasty_grader.grade(boxed(r"\sum_{k=1}^{99999999999} k^{99999}"), "1")

    assert (verdict.correct, verdict.kind, verdict.reason) == (False, VerdictKind.TIMEOUT, "answer_killed_grader")
    assert (await hasty_grader.grade(boxed(r"\int_0^1 x\,dx"), "0.5")).correct


@pytest.mark.slow
async def test_an_answer_whose_process_is_killed_again_and_again_is_wrong_because_the_reference_is_not() -> None:
    """As the kernel does to a process that takes all memory."""
    async with MathGrader(processes=1, limit_s=30) as grader:
        grading = asyncio.create_task(grader.grade(boxed(r"\sum_{k=1}^{99999999999} k^{99999}"), "1"))
        for _ in range(2):
            await wait_until(lambda: grader.working, "a process compares", timeout_s=30)
            (pid,) = grader.working
            os.kill(pid, signal.SIGKILL)
            await wait_until(lambda: not grader.working, "its death was noticed")

        verdict = await grading

    assert (verdict.correct, verdict.kind, verdict.reason) == (False, VerdictKind.ERROR, "answer_killed_grader")


@pytest.mark.slow
async def test_a_process_killed_once_costs_nobody_anything(grader: MathGrader) -> None:
    await grader.warm()
    for pid in grader.pids:
        os.kill(pid, signal.SIGKILL)

    assert (await grader.grade(boxed(r"\int_0^1 x\,dx"), "0.5")).correct


@pytest.mark.slow
async def test_a_reference_that_breaks_the_grader_is_no_fault_of_the_answer(hasty_grader: MathGrader) -> None:
    with pytest.raises(GraderError, match="cannot be compared"):
        await hasty_grader.grade(boxed(r"\int_0^1 x\,dx"), r"\sum_{k=1}^{99999999999} k^{99999}")


@pytest.mark.parametrize("gold", ["", "  ", r"\text{nan}", "NaN"])
async def test_a_reference_that_is_no_answer_is_an_error(grader: MathGrader, gold: str) -> None:
    with pytest.raises(GraderError, match="no answer"):
        await grader.grade(boxed("5"), gold)


async def test_a_boxed_reference_is_taken_out_of_its_box(grader: MathGrader) -> None:
    assert (await grader.grade(boxed("5"), r"$\boxed{5}$")).correct


@pytest.mark.slow
async def test_the_loop_runs_on_while_a_process_is_at_work(hasty_grader: MathGrader) -> None:
    grading = asyncio.create_task(hasty_grader.grade(boxed(r"\sum_{k=1}^{99999999999} k^{99999}"), "1"))
    beats = 0
    while not grading.done():
        await asyncio.sleep(0)
        beats += 1

    assert beats > 100
    assert grading.result().kind is VerdictKind.TIMEOUT


@pytest.mark.slow
async def test_a_cancelled_grade_and_a_left_grader_leave_no_process() -> None:
    async with MathGrader(processes=2, limit_s=30) as grader:
        await grader.warm()
        pids = grader.pids
        assert len(pids) == 2
        grading = asyncio.create_task(grader.grade(boxed(r"\sum_{k=1}^{99999999999} k^{99999}"), "1"))
        await wait_until(lambda: grader.working, "a process compares")
        grading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await grading

    assert not any(psutil.pid_exists(pid) for pid in pids)
