"""A content in the pieces in which it goes into a sandbox, whichever way that is."""

from __future__ import annotations

from collections.abc import Callable

PIECE_BYTES = 256 * 1024


def pieces_of(content: bytes) -> Callable[[], bytes]:
    """What answers the next piece each time it is called; empty at the end."""
    left = memoryview(content)

    def next_piece() -> bytes:
        nonlocal left
        piece, left = left[:PIECE_BYTES], left[PIECE_BYTES:]
        return bytes(piece)

    return next_piece
