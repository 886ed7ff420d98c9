"""Reads a text that was pickled, and nothing else that a pickle can be.

A pickle is a program; running one from a data set would run whatever its author wrote. LiveCodeBench keeps its hidden tests as one pickled
text, so the few instructions that such a pickle has are read here, and any other one is refused.
"""

from __future__ import annotations

import base64
import binascii
import zlib

MOST_BYTES = 512 << 20
"""Of the text, once it is unpacked; the largest tests of the data set have a fifth of it."""
_PROTOCOL, _FRAME, _STOP = 0x80, 0x95, 0x2E
_LENGTHS = {0x8C: 1, 0x58: 4, 0x8D: 8}
"""Instructions that hold a text, by the bytes of its length."""
_KEPT = {0x94: 0, 0x71: 1, 0x72: 4}
"""Instructions that note the text for later, by the bytes that follow."""


class NotPickledTextError(ValueError):
    """It is something else; says what."""


def packed_text(packed: str) -> str:
    """The text in a base64 of a zlib stream of a pickle.

    Raises:
        NotPickledTextError: any of the layers is something else.
    """
    try:
        unpacker = zlib.decompressobj()
        pickled = unpacker.decompress(base64.b64decode(packed, validate=True), MOST_BYTES)
    except (binascii.Error, zlib.error, ValueError) as broken:
        raise NotPickledTextError(f"no compressed text: {broken}") from broken
    if unpacker.unconsumed_tail:
        raise NotPickledTextError(f"more than {MOST_BYTES} bytes when unpacked")
    return pickled_text(pickled)


def pickled_text(pickled: bytes) -> str:
    """The text that a pickle holds.

    Raises:
        NotPickledTextError: it holds something else, or ends early.
    """
    found: str | None = None
    place = 0

    def take(count: int) -> bytes:
        nonlocal place
        piece = pickled[place : place + count]
        if len(piece) != count:
            raise NotPickledTextError("the pickle ends early")
        place += count
        return piece

    while True:
        code = take(1)[0]
        if code == _PROTOCOL:
            take(1)
        elif code == _FRAME:
            take(8)
        elif code in _KEPT:
            take(_KEPT[code])
        elif code in _LENGTHS and found is None:
            length = int.from_bytes(take(_LENGTHS[code]), "little")
            try:
                found = take(length).decode("utf-8", "surrogatepass")
            except UnicodeDecodeError as broken:
                raise NotPickledTextError(str(broken)) from broken
        elif code == _STOP and found is not None:
            return found
        else:
            raise NotPickledTextError(f"a pickle of something else than one text (instruction 0x{code:02x} at {place - 1})")
