"""Counts in sentences."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """`1 job`, `2 jobs`, `1,000 jobs`.

    Args:
        one: the words behind a 1.
        many: the words behind any other number; default: `one` with an s.
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"
