"""What a grader may raise: it broke. Whose doing that is, the stage finds out by the gold answer (`stages/judging.py`)."""

from __future__ import annotations

from typing import ClassVar

from pipeline.errors import RollstreamError


class GraderError(RollstreamError):
    """The grader could not judge: never a reward by itself.

    Args:
        why: what was tried and what came.
        grader: which grader broke.
    """

    may_be_the_answers_doing: ClassVar[bool] = True
    """False in a class of errors that no answer can cause, such as a service that cannot be reached: gold is not asked about them then."""

    def __init__(self, why: str, *, grader: str) -> None:
        super().__init__(f"{grader} grader: {why}")
        self.why = why
        self.grader = grader
