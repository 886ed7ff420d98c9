"""Sizes of a trajectory's segments as one field of its job's record: `812/240 944/130`, tokens and loss tokens of each in order.

They let every rank of a trainer know how a step is shared out before it reads a trajectory. The field may be absent, and then the
trajectory tells: it is empty for more than `MAX_SEGMENTS` segments, and what cannot be read counts as empty.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from pipeline.messages import SegmentSize, Trajectory

MAX_SEGMENTS = 64
"""Most segments whose sizes a record holds: a kilobyte of a record that is read by every client of the run."""
_FIELD = re.compile(r"[0-9]{1,9}/[0-9]{1,9}(?: [0-9]{1,9}/[0-9]{1,9})*")


def sizes_of(trajectory: Trajectory) -> tuple[SegmentSize, ...]:
    """Sizes of all segments, in order."""
    return tuple(
        SegmentSize(tokens=len(segment.token_ids), loss_tokens=int(np.count_nonzero(segment.loss_mask))) for segment in trajectory.segments
    )


def sizes_text(sizes: Sequence[SegmentSize]) -> str:
    """As the field; empty for none and for too many."""
    if len(sizes) > MAX_SEGMENTS:
        return ""
    return " ".join(f"{size.tokens}/{size.loss_tokens}" for size in sizes)


def read_sizes(text: str) -> tuple[SegmentSize, ...]:
    """The sizes in that field; none when it is empty or no such field."""
    if not _FIELD.fullmatch(text):
        return ()
    pairs = (word.partition("/") for word in text.split(" "))
    sizes = tuple(SegmentSize(tokens=int(tokens), loss_tokens=int(loss)) for tokens, _, loss in pairs)
    return sizes if len(sizes) <= MAX_SEGMENTS and all(size.loss_tokens <= size.tokens for size in sizes) else ()


__all__ = ["MAX_SEGMENTS", "read_sizes", "sizes_of", "sizes_text"]
