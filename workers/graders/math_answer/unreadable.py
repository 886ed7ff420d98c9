"""The one way in which reading an answer fails."""

from __future__ import annotations


class Unreadable(Exception):
    """The text is no mathematics this package reads.

    Args:
        why: what stands in the way.
        prose: the text holds words that are no part of a formula, so a more capable reader must not guess at it either.
    """

    def __init__(self, why: str, *, prose: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.prose = prose
