"""The one way in which reading an answer fails."""

from __future__ import annotations


class Unreadable(Exception):
    """The text is no mathematics this package reads.

    Args:
        why: what stands in the way.
        final: a more capable reader must not try either: there are words that are no part of a formula, of which it would guess the
            meaning, or more nesting or length than any answer has.
    """

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.final = final
