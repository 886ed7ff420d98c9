"""What a test can come to, and what a program comes to by its tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What became of one test."""

    ACCEPTED = "accepted"
    """The program ended well and its output is the expected one."""
    WRONG_ANSWER = "wrong_answer"
    """It ended well; its output is another, or what the function returned is no plain value."""
    RUNTIME_ERROR = "runtime_error"
    """It raised, exited with a code, was killed by a signal, or ended before its function returned."""
    TIME_LIMIT = "time_limit"
    """Its time was over, by the clock or by the processor."""
    MEMORY_LIMIT = "memory_limit"
    """It was refused memory, or ended for it."""
    OUTPUT_LIMIT = "output_limit"
    """It wrote more than it may."""
    PROCESS_LIMIT = "process_limit"
    """It was refused a process or a thread."""
    COMPILE_ERROR = "compile_error"
    """It is no program; the other tests come to the same."""
    NO_TESTS = "no_tests"
    """There was nothing to test it by: never a pass."""
    GRADER_ERROR = "grader_error"
    """The grader broke. In records only: the grader raises `GraderError`."""
    NOT_RUN = "not_run"
    """A test before it failed, and one is enough; or too many came to their limit of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestVerdict:
    """What became of one test, and what is told of it: nothing that it expected."""

    __test__ = False  # no test of pytest's

    verdict: Verdict
    why: str = ""
    """For people: the end of what it wrote to standard error, or what ended it."""
    own_s: float = 0.0
    """Seconds it ran or could have run."""
    peak_bytes: int = 0
    """The most memory its first process had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeVerdict:
    """The grade of one program."""

    tests: Sequence[TestVerdict]
    """In the order of the problem's tests."""
    seconds: float
    """From call to verdict."""
    sandboxes: int = 0
    """How many it took: each program that left something behind costs one."""

    @property
    def accepted(self) -> int:
        return sum(test.verdict is Verdict.ACCEPTED for test in self.tests)

    @property
    def passed(self) -> bool:
        """Whether there are tests, and all of them were accepted."""
        return bool(self.tests) and self.accepted == len(self.tests)

    @property
    def fraction(self) -> float:
        """Accepted tests of all tests, those that were not run included; 0 when there are none."""
        return self.accepted / len(self.tests) if self.tests else 0.0

    @property
    def worst(self) -> Verdict:
        """The first verdict that is no pass; what a person asks for first."""
        return next((test.verdict for test in self.tests if test.verdict is not Verdict.ACCEPTED), Verdict.ACCEPTED)


def no_tests() -> CodeVerdict:
    """The verdict on a program that nothing was there to test."""
    return CodeVerdict(tests=(TestVerdict(verdict=Verdict.NO_TESTS, why="the problem has no tests"),), seconds=0.0)
