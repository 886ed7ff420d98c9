"""A problem of the task `code`, in whichever layout its row is."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass

from workers.graders.code import AssertTest, CodeTests

MAX_CHARS = 60_000
"""Of a question, a starter, a solution or a program of tests."""
MAX_TESTS = 1_000
"""Of one row. Data sets with more have them cut by the option `max_tests`."""
_FUTURE = re.compile(r"^from __future__ import (?:\([^)]*\)|[^\n]*)", re.MULTILINE)
"""Python wants these before all else."""


MOST_PARSED = 50_000
"""Characters of a program of tests that is looked at when a row is read."""


def why_no_program(source: str) -> str:
    """Why a program of tests cannot be one; empty when it can, or is too long to look at here: each stage of a job reads its row."""
    if len(source) > MOST_PARSED:
        return ""
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as broken:
        return f"{type(broken).__name__}: {broken}"
    return ""


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
