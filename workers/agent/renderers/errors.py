"""What keeps a worker from rendering a job's dialogues."""

from __future__ import annotations

from pipeline.errors import RollstreamError


class RendererUnavailable(RollstreamError):
    """This worker lacks what a job's chat settings name: a tokenizer's files, or the package of its family. Another worker may have it.

    Args:
        what: the path or the package.
        why: what was found instead, and what to do.
    """

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"cannot render with {what}: {why}")
        self.what = what
