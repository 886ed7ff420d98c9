"""Frames between a worker and the execution server; both sides use this file. ADR 20 tells the protocol.

    length of the content (2 bytes), kind (1), number of the request (4), all big endian; then the content

So a length for which nobody has the memory cannot even be written.
"""

from __future__ import annotations

import struct

VERSION = 1
HEAD = struct.Struct(">HBI")
MAX_CONTENT_BYTES = 0xFFFF
MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""Twice what the kernel takes of arguments and environment of a program: who asks for more is answered by it, not by us."""
MAX_REPLY_BYTES = 1024
"""Of content from inside: a number and a sentence."""
MAX_DESCRIPTORS = 16
"""That come with one request."""
TOKEN_BYTES = 32

HELLO, PART, ASK, KILL = 1, 2, 3, 4
READY, STARTED, FAILED, ENDED = 17, 18, 19, 20
REPLIES = (READY, STARTED, FAILED, ENDED)

_VALUE = struct.Struct(">i")
_KILL = struct.Struct(">BB")
SCOPES = ("group", "tree", "others")


class FrameError(Exception):
    """The other side does not speak this protocol."""


def frame(kind: int, number: int, content: bytes = b"") -> bytes:
    """One frame."""
    return HEAD.pack(len(content), kind, number) + content


def request_frames(number: int, request: bytes) -> list[bytes]:
    """The frames of one request, the last of which is ASK."""
    last = max(0, len(request) - 1) // MAX_CONTENT_BYTES * MAX_CONTENT_BYTES
    parts = [frame(PART, number, request[at : at + MAX_CONTENT_BYTES]) for at in range(0, last, MAX_CONTENT_BYTES)]
    return [*parts, frame(ASK, number, request[last:])]


def reply(kind: int, number: int, value: int, text: str = "") -> bytes:
    """An answer of the server."""
    said = text.encode("utf-8", "backslashreplace")[: MAX_REPLY_BYTES - _VALUE.size]
    return frame(kind, number, _VALUE.pack(value) + said)


def read_reply(kind: int, content: bytes) -> tuple[int, str]:
    """Value and text of an answer.

    Raises:
        FrameError: it is none.
    """
    if kind not in REPLIES:
        raise FrameError(f"a frame of kind {kind}")
    if not _VALUE.size <= len(content) <= MAX_REPLY_BYTES:
        raise FrameError(f"an answer of {len(content):,} bytes, expected {_VALUE.size} to {MAX_REPLY_BYTES:,}")
    return _VALUE.unpack_from(content)[0], content[_VALUE.size :].decode("utf-8", "replace")


def kill_frame(number: int, scope: str, signal_number: int) -> bytes:
    return frame(KILL, number, _KILL.pack(SCOPES.index(scope), signal_number))


def read_kill(content: bytes) -> tuple[str, int]:
    """Scope and signal of a KILL frame."""
    scope, number = _KILL.unpack(content)
    return SCOPES[scope], number


class Decoder:
    """Cuts a stream into frames. Holds at most one that is not whole.

    Args:
        limit: of content; a longer frame is refused when its head is there.
    """

    def __init__(self, limit: int = MAX_CONTENT_BYTES) -> None:
        self._limit = limit
        self._held = bytearray()

    @property
    def is_partial(self) -> bool:
        return bool(self._held)

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Kind, number and content of the frames that are whole now.

        Raises:
            FrameError: one is longer than it may be; nothing more may be fed.
        """
        self._held += data
        found = []
        at = 0
        while len(self._held) - at >= HEAD.size:
            length, kind, number = HEAD.unpack_from(self._held, at)
            if length > self._limit:
                raise FrameError(f"a frame of {length:,} bytes, at most {self._limit:,} are taken")
            end = at + HEAD.size + length
            if len(self._held) < end:
                break
            found.append((kind, number, bytes(self._held[at + HEAD.size : end])))
            at = end
        del self._held[:at]
        return found
