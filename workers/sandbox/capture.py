"""Bounded memory of an unbounded stream: its beginning and its end.

Invariant: what is kept never exceeds `max_bytes` by more than one half, however much is fed; `total == kept + dropped`.
"""

from __future__ import annotations


class HeadTail:
    """Keeps the first and the last half of `max_bytes`, and counts what fell out between."""

    __slots__ = ("_half", "_head", "_tail", "total_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._half = max(1, max_bytes // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Takes more of the stream."""
        self.total_bytes += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data[-self._half :]
            if len(self._tail) > 2 * self._half:  # trimmed rarely: each byte is moved at most once more
                del self._tail[: -self._half]

    @property
    def dropped_bytes(self) -> int:
        """Bytes between the beginning and the end that are not kept."""
        return self.total_bytes - len(self._head) - min(len(self._tail), self._half)

    def parts(self) -> tuple[bytes, bytes]:
        """Beginning and end."""
        return bytes(self._head), bytes(self._tail[-self._half :])

    def content(self) -> bytes:
        """All that is kept, with a line where bytes are missing."""
        head, tail = self.parts()
        return head + tail if not self.dropped_bytes else head + self._gap().encode() + tail

    def text(self) -> str:
        """As `content`, decoded; a character that the cut went through is left out, other damage shows as U+FFFD."""
        head, tail = self.parts()
        if not self.dropped_bytes:
            return (head + tail).decode("utf-8", "replace")
        return _without_cut_end(head).decode("utf-8", "replace") + self._gap() + _without_cut_start(tail).decode("utf-8", "replace")

    def _gap(self) -> str:
        return f"\n[... {self.dropped_bytes} bytes left out ...]\n"


def _without_cut_end(data: bytes) -> bytes:
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:  # a lead byte: complete only when as many bytes follow as it promises
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data if needed == back else data[:-back]
    return data


def _without_cut_start(data: bytes) -> bytes:
    skip = 0
    while skip < min(3, len(data)) and 0x80 <= data[skip] < 0xC0:
        skip += 1
    return data[skip:]
