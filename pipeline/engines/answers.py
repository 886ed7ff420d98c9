"""One HTTP/1.1 answer, read as its bytes come.

Invariants:
  1. Where an answer ends is what its head says, in one way only: a status without a body, a length, chunks, or the end of the connection.
  2. A head that says it in two ways, or is not written by the rules, is `Malformed`; so are chunks. Nothing is repaired.
  3. Never more than a head and `most_bytes` is kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_HEAD_BYTES = 64 * 1024
MOST_LINE_BYTES = 4096
"""Of the line before a chunk, and of those behind the last."""
_STATUS = re.compile(r"HTTP/1\.([01]) ([1-9]\d\d)(?: [^\r\n\0]*)?")
_FIELD = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\0]*)")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n\0]*)?")
_LENGTH = re.compile(r"[0-9]{1,18}")
WITHOUT_BODY = (204, 304)


class Malformed(Exception):
    """No HTTP/1.1."""


class TooLong(Exception):
    """More than was allowed."""


@dataclass(frozen=True, slots=True)
class Received:
    """One answer."""

    status: int
    headers: dict[str, str]
    """By names in lower case; several of one name are joined with commas."""
    content: bytes
    keeps: bool
    """Whether another may follow on the same connection."""


class AnswerReader:
    """Reads one answer to anything but HEAD.

    Args:
        most_bytes: of its body.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._buffer = bytearray()
        """What came and is not read yet."""
        self._status = 0
        """0 = its head is not there."""
        self._headers: dict[str, str] = {}
        self._keeps = False
        self._length: int | None = None
        """None = in chunks, or to the end of the connection."""
        self._in_chunks = False
        self._content = bytearray()
        """Of chunks."""
        self._chunk_left = 0
        """Of the chunk that comes, the line end behind it included."""
        self._is_last = False

    @property
    def has_head(self) -> bool:
        """Whether the answer has begun."""
        return self._status > 0

    def feed(self, data: bytes) -> Received | None:
        """The answer, when this was the last of it.

        Raises:
            Malformed, TooLong
        """
        self._buffer += data
        while not self._status:
            at = self._buffer.find(b"\r\n\r\n")
            if (at if at >= 0 else len(self._buffer)) > MOST_HEAD_BYTES:
                raise Malformed(f"a head of more than {MOST_HEAD_BYTES:,} bytes")
            if at < 0:
                return None
            self._read_head(self._buffer[:at].decode("latin-1"))
            del self._buffer[: at + 4]
        if self._in_chunks:
            return self._read_chunks()
        length = self._length
        if length is None:
            self._bound(len(self._buffer))
            return None
        if len(self._buffer) < length:
            return None
        return self._received(bytes(memoryview(self._buffer)[:length]), keeps=self._keeps and len(self._buffer) == length)

    def end(self) -> Received | None:
        """The answer whose end is that of the connection; None for any other."""
        if not self._status or self._in_chunks or self._length is not None:
            return None
        return self._received(bytes(self._buffer), keeps=False)

    def _read_head(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        line = _STATUS.fullmatch(first)
        if line is None:
            raise Malformed(f"expected a status line, got {first[:80]!r}")
        status = int(line[2])
        if status == 101:
            raise Malformed("it changes to a protocol that nobody asked for")
        if status < 200:  # an answer before the answer
            return
        headers: dict[str, str] = {}
        for text in lines:
            field = _FIELD.fullmatch(text)
            if field is None:
                raise Malformed(f"expected a header, got {text[:80]!r}")
            name, value = field[1].lower(), field[2].rstrip(" \t")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        self._headers, self._status = headers, status
        said = {word.strip().lower() for word in headers.get("connection", "").split(",")}
        self._keeps = "close" not in said and (line[1] == "1" or "keep-alive" in said)
        self._find_end(headers)

    def _find_end(self, headers: dict[str, str]) -> None:
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if self._status in WITHOUT_BODY:
            self._length = 0
            return
        if coding is not None:
            if coding.lower() != "chunked" or length is not None:
                raise Malformed(f"transfer-encoding {coding[:80]!r} with content-length {length and length[:80]!r}")
            self._in_chunks = True
        elif length is not None:
            if not _LENGTH.fullmatch(length):
                raise Malformed(f"content-length {length[:80]!r}")
            self._length = int(length)
            self._bound(self._length)

    def _read_chunks(self) -> Received | None:
        buffer, place = self._buffer, 0
        while True:
            if self._chunk_left > 2:
                piece = memoryview(buffer)[place : place + self._chunk_left - 2]
                self._content += piece
                place += len(piece)
                self._chunk_left -= len(piece)
                piece.release()
            if 0 < self._chunk_left <= 2 and len(buffer) - place >= 2:
                if buffer[place : place + 2] != b"\r\n":
                    raise Malformed("a chunk is longer than it said")
                place, self._chunk_left = place + 2, 0
            if self._chunk_left:
                break
            at = buffer.find(b"\r\n", place, place + MOST_LINE_BYTES)
            if at < 0:
                if len(buffer) - place >= MOST_LINE_BYTES:
                    raise Malformed(f"a line among chunks of more than {MOST_LINE_BYTES:,} bytes")
                break
            line, place = bytes(buffer[place:at]), at + 2
            if not self._is_last:
                self._begin_chunk(line)
            elif not line:  # behind the last chunk and what may follow it
                return self._received(bytes(self._content), keeps=self._keeps and place == len(buffer))
        del buffer[:place]
        return None

    def _begin_chunk(self, line: bytes) -> None:
        size = _CHUNK.fullmatch(line)
        if size is None:
            raise Malformed(f"expected the size of a chunk, got {line[:80]!r}")
        n_bytes = int(size[1], 16)
        self._bound(len(self._content) + n_bytes)
        self._is_last = n_bytes == 0
        self._chunk_left = n_bytes + 2 if n_bytes else 0

    def _received(self, content: bytes, *, keeps: bool) -> Received:
        return Received(self._status, self._headers, content, keeps)

    def _bound(self, n_bytes: int) -> None:
        if n_bytes > self._most_bytes:
            raise TooLong(f"more than {self._most_bytes:,} bytes")
