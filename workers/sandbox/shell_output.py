"""Cuts one command's output out of what a terminal shows: between two fences that carry the command's number.

    ... late output of earlier jobs ... \\1\\2 N s \\3  the output  \\1\\2 N e \\3  ... late output for the next command ...

Fences only say where output begins and ends; that a command has ended is said by the control pipe (`shell_session.py`).
"""

from __future__ import annotations

from workers.sandbox.capture import HeadTail

LATE_BYTES = 4096
"""What background jobs said between two commands; the model gets a glimpse, a flood is not worth its memory."""


class FencedOutput:
    """The output of one command, fed as it comes."""

    def __init__(self, number: str, max_bytes: int, late: HeadTail) -> None:
        self._start = b"\x01\x02%ss\x03" % number.encode()
        self._end = b"\x01\x02%se\x03" % number.encode()
        self._max_bytes = max_bytes
        self._carry = b""
        self.late = late
        self.shown = HeadTail(max_bytes)
        self.after = HeadTail(LATE_BYTES)
        self.has_begun = False
        self.is_complete = False

    def feed(self, data: bytes) -> None:
        """Takes what the terminal showed next; a fence may be cut anywhere."""
        rest: bytes | None = self._carry + data
        self._carry = b""
        if not self.has_begun:
            rest = self._up_to(self._start, rest or b"", self.late)
            self.has_begun = rest is not None
        if rest is not None and not self.is_complete:
            rest = self._up_to(self._end, rest, self.shown)
            self.is_complete = rest is not None
        if rest is not None:
            self.after.feed(rest)

    def take(self) -> HeadTail:
        """What was shown since the last take; a terminal that was taken over and shows no fence still shows something."""
        (self.shown if self.has_begun else self.late).feed(self._carry)
        self._carry = b""
        if not self.has_begun:
            taken, self.late = self.late, HeadTail(LATE_BYTES)
            return taken
        taken, self.shown = self.shown, HeadTail(self._max_bytes)
        return taken

    def _up_to(self, fence: bytes, data: bytes, sink: HeadTail) -> bytes | None:
        """Feeds what stands before the fence; returns what stands behind it, None when it has not come."""
        at = data.find(fence)
        if at >= 0:
            sink.feed(data[:at])
            return data[at + len(fence) :]
        # Only what may be the beginning of the fence is held back, so that a prompt without a line end is not.
        held = next((n for n in range(min(len(fence) - 1, len(data)), 0, -1) if fence.startswith(data[-n:])), 0)
        sink.feed(data[: len(data) - held])
        self._carry = data[len(data) - held :]
        return None
