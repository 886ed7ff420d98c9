"""The error of a trajectory that must not be trained on."""

from __future__ import annotations

from pipeline.errors import RollstreamError


class BadTrajectory(RollstreamError):
    """A trajectory that must not be trained on: it breaks what the record promises."""

    def __init__(self, job: str, problem: str) -> None:
        super().__init__(
            f"trajectory of {job}: {problem}; leave its group out of this step, and look at it with `rollstream trajectory check`"
        )
        self.job = job


__all__ = ["BadTrajectory"]
