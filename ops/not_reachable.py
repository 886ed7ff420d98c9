"""What a command names and cannot be reached: exit code 3."""

from __future__ import annotations

from pipeline.errors import RollstreamError


class NotReachable(RollstreamError):
    """A server that does not answer, or not as one."""
