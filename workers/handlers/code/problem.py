"""A problem of the task `code`, in whichever layout its row is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from workers.graders.code import AssertTest, CodeTests

MAX_CHARS = 60_000
"""Of a question, a starter, a solution or a program of tests."""
MAX_TESTS = 1_000
"""Of one row. Data sets with more have them cut by the option `max_tests`."""
_FUTURE = re.compile(r"^from __future__ import (?:\([^)]*\)|[^\n]*)", re.MULTILINE)
"""Python wants these before all else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem, how it is judged, and what solves it."""

    question: str
    tests: CodeTests
    starter: str = ""
    """How the program begins, when the problem says so: shown to the model."""
    preamble: str = ""
    """Stands before every program: what the problem's own text defines."""
    solutions: tuple[str, ...] = ()
    """Programs that are right; the first one is the gold answer."""

    @property
    def is_called(self) -> bool:
        """Whether functions are called, and nothing is read or printed."""
        return bool(self.tests.entry) or any(isinstance(test, AssertTest) for test in self.tests.tests)

    def whole(self, program: str) -> str:
        """A program with what stands before it."""
        if not self.preamble.strip():
            return program
        return "\n".join((*_FUTURE.findall(program), self.preamble, _FUTURE.sub("", program)))
