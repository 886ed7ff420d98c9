"""What files held before the editor's last edits, for `undo_edit`. Bounded in edits and in bytes: the oldest are forgotten first."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass

MAX_EDITS = 100
MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of one file."""

    path: str
    before: bytes | None
    """None: the file was made by this edit."""
    after: bytes
    """SHA-256 of what the edit wrote."""

    def left(self, content: bytes) -> bool:
        """Whether a file holds what this edit left in it."""
        return hashlib.sha256(content).digest() == self.after


class EditHistory:
    """The last edits of one trajectory, over all files."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._edits: deque[Edit] = deque()
        self._bytes = 0

    def note(self, path: str, before: bytes | None, after: bytes) -> None:
        """Remembers an edit that was made."""
        self._edits.append(Edit(path, before, hashlib.sha256(after).digest()))
        self._bytes += len(before or b"")
        while len(self._edits) > MAX_EDITS or self._bytes > self._max_bytes:
            self._bytes -= len(self._edits.popleft().before or b"")

    def last(self, path: str) -> Edit | None:
        """The last edit of a file that is remembered."""
        return next((edit for edit in reversed(self._edits) if edit.path == path), None)

    def forget(self, edit: Edit) -> None:
        """It was undone."""
        self._edits.remove(edit)
        self._bytes -= len(edit.before or b"")
