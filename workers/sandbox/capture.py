"""Bounded memory of an unbounded stream: its beginning and its end.

Invariant: what is kept never exceeds `max_bytes` by more than one half, however much is fed; `total == kept + dropped`.
"""

from __future__ import annotations

from workers.sandbox.graphemes import whole_head, whole_tail

BESIDE_BYTES = 64
"""Kept of what is dropped next to either cut, to know whether the cut went through a character."""


class HeadTail:
    """Keeps the first and the last half of `max_bytes`, and counts what fell out between."""

    __slots__ = ("_after_head", "_half", "_head", "_tail", "total_bytes")

    def __init__(self, max_bytes: int) -> None:
        self._half = max(1, max_bytes // 2)
        self._head = bytearray()
        self._after_head = b""
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
            if len(self._after_head) < BESIDE_BYTES:
                self._after_head += bytes(data[: BESIDE_BYTES - len(self._after_head)])
            self._tail += data[-self._half - BESIDE_BYTES :]
            if len(self._tail) > 2 * (self._half + BESIDE_BYTES):  # trimmed rarely: each byte is moved at most once more
                del self._tail[: -self._half - BESIDE_BYTES]

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
        """As `content`, decoded; a character that a cut went through is left out, other damage shows as U+FFFD."""
        head, tail = self.parts()
        if not self.dropped_bytes:
            return (head + tail).decode("utf-8", "replace")
        dropped_last = bytes(self._tail[: -self._half][-BESIDE_BYTES:])
        whole = _without_cut_end(head)
        following = (head[len(whole) :] + self._after_head).decode("utf-8", "replace")
        # What is whole of the last dropped bytes, and what is left of a character that goes on into the tail.
        rest = _without_cut_start(tail)
        preceding = _without_cut_end(_without_cut_start(dropped_last + tail[: len(tail) - len(rest)])).decode("utf-8", "replace")
        shown_head = whole_head(whole.decode("utf-8", "replace"), following)
        return shown_head + self._gap() + whole_tail(preceding, rest.decode("utf-8", "replace"))

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
