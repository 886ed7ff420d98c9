"""Sets of real numbers as sorted pieces, so that one set written in different ways compares equal.

An interval, a union, an inequality, the reals without a point and a finite set all become a list of pieces between two ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

End = Any
"""A real mpmath number or an infinity."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The numbers between two ends, one of them or both included; a single point has two equal ends, both included."""

    low: End
    low_closed: bool
    high: End
    high_closed: bool

    @property
    def is_empty(self) -> bool:
        return bool(self.low > self.high or (self.low == self.high and not (self.low_closed and self.high_closed)))


RealSet = tuple[Piece, ...]
"""Pieces in order that neither overlap nor touch."""


def united(pieces: Iterable[Piece]) -> RealSet:
    """The union of any pieces, in normal form."""
    result: list[Piece] = []
    for piece in sorted((piece for piece in pieces if not piece.is_empty), key=lambda piece: (piece.low, not piece.low_closed)):
        last = result[-1] if result else None
        if last is not None and (piece.low < last.high or (piece.low == last.high and (piece.low_closed or last.high_closed))):
            further = piece.high > last.high or (piece.high == last.high and piece.high_closed)
            result[-1] = Piece(last.low, last.low_closed, piece.high, piece.high_closed) if further else last
        else:
            result.append(piece)
    return tuple(result)


def complement(pieces: RealSet, infinity: End) -> RealSet:
    """All reals that are not in the set."""
    gaps: list[Piece] = []
    low, low_closed = -infinity, False
    for piece in pieces:
        gaps.append(Piece(low, low_closed, piece.low, not piece.low_closed))
        low, low_closed = piece.high, not piece.high_closed
    gaps.append(Piece(low, low_closed, infinity, False))
    return united(
        Piece(gap.low, gap.low_closed and gap.low != -infinity, gap.high, gap.high_closed and gap.high != infinity) for gap in gaps
    )


def intersected(first: RealSet, second: RealSet) -> RealSet:
    """What both sets have."""
    common: list[Piece] = []
    for one in first:
        for other in second:
            low = max(one.low, other.low)
            high = min(one.high, other.high)
            low_closed = (one.low < low or one.low_closed) and (other.low < low or other.low_closed)
            high_closed = (one.high > high or one.high_closed) and (other.high > high or other.high_closed)
            common.append(Piece(low, low_closed, high, high_closed))
    return united(common)


def same_set(first: RealSet, second: RealSet, tolerance: float) -> bool:
    """Whether two sets are equal, their ends within a relative tolerance that only takes up the rounding of irrational ends."""
    return len(first) == len(second) and all(
        one.low_closed == other.low_closed
        and one.high_closed == other.high_closed
        and _close(one.low, other.low, tolerance)
        and _close(one.high, other.high, tolerance)
        for one, other in zip(first, second, strict=True)
    )


def _close(one: End, other: End, tolerance: float) -> bool:
    return bool(one == other or abs(one - other) <= tolerance * max(abs(one), abs(other)))
