"""What makes a change of a recorded id or logprob visible: each turn carries a checksum of what it was given and what it sampled.

The checksum of a turn is the CRC-32 of all ids of its segment up to the turn's end (u32, little endian), continued over the logprobs of
the turn's own tokens (f32, little endian). It is made once, from the server's answer, and stored in `Turn.checksum`. A record whose
turns all agree is therefore, id for id, what was sent and what came back: nothing was encoded anew, moved or rounded on its way.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence

import numpy as np

from pipeline.messages import F32, U32


def add_ids(checksum: int, ids: Sequence[int] | U32) -> int:
    """The checksum of some ids, continued over more."""
    return zlib.crc32(np.asarray(ids, dtype="<u4").tobytes(), checksum)


def turn_checksum(ids_checksum: int, logprobs: Sequence[float] | F32 | array[float]) -> int:
    """The checksum of a turn.

    Args:
        ids_checksum: of all ids up to the turn's end.
        logprobs: of the turn's tokens.
    """
    return zlib.crc32(np.asarray(logprobs, dtype="<f4").tobytes(), ids_checksum)
