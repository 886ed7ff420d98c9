"""What a grader may raise: it broke, and the answer is not to blame."""

from __future__ import annotations

from pipeline.errors import RollstreamError


class GraderError(RollstreamError):
    """The grader could not judge, and the answer under judgement is not the cause: a failure of infrastructure, never a reward.

    Args:
        why: what was tried and what came.
        grader: which grader broke.
    """

    def __init__(self, why: str, *, grader: str) -> None:
        super().__init__(f"{grader} grader: {why}")
        self.why = why
        self.grader = grader
