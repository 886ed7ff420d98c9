"""A log file that several processes append to, and that is rotated under them.

    node.log   node.log.1   node.log.2 ...    the newest first; `files` of them

Invariants (docs/adr/0033-logs-and-secrets.md):

- A line is appended by one `write` to a file opened with `O_APPEND`: the kernel lets one append at a time into a file.
- Of several processes that find the file full one renames it: under an flock on that file, after another look at its name.
- A line goes to the file of that name, or to one that was renamed a moment ago. No line is written to a file that is gone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from pathlib import Path

MOST_FILES = 100


class SharedLogFile:
    """One log file, as one process appends to it. Safe to use from several threads.

    Args:
        path: of the newest file.
        max_bytes: a file that has as many is renamed before the next line.
        files: how many there are at most, the newest counted.
    """

    def __init__(self, path: Path, *, max_bytes: int, files: int) -> None:
        self.path = path
        self._max_bytes, self._files = max_bytes, files
        self._fd = -1
        self._file = (-1, -1)
        """Device and number of the open file."""
        self._lock = threading.RLock()

    def write(self, line: bytes) -> None:
        """Appends a line, which has its end.

        Raises:
            OSError: it is not there, or not whole.
        """
        with self._lock:
            self._open_newest()
            if os.write(self._fd, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def trouble(self) -> str:
        """Why a line could not be written now, as far as can be seen without writing one; empty when nothing speaks against it."""
        try:
            with self._lock:
                self._open_newest()
            room = os.statvfs(self.path)
        except OSError as error:
            return error.strerror or str(error)
        return os.strerror(errno.ENOSPC) if room.f_bavail == 0 else ""

    def close(self) -> None:
        """Lets go of the file; a later line opens it again."""
        with self._lock:
            self._close()

    def _open_newest(self) -> None:
        """Makes the file of that name the open one, and renames it first when it is full."""
        for _ in range(self._files + 2):  # each time round somebody else was faster
            try:
                there = os.stat(self.path)
            except FileNotFoundError:
                self._open()
                continue
            if (there.st_dev, there.st_ino) != self._file:
                self._open()
            elif there.st_size < self._max_bytes or not self._rename():
                return
        if self._fd < 0:
            self._open()

    def _open(self) -> None:
        self._close()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        facts = os.fstat(self._fd)
        self._file = (facts.st_dev, facts.st_ino)

    def _rename(self) -> bool:
        """False when another process does so now: a line that goes to the full file is in its place, too."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        with contextlib.suppress(FileNotFoundError):
            there = os.stat(self.path)
            if (there.st_dev, there.st_ino) == self._file:
                self._shift()
        self._close()  # and with it goes the lock
        return True

    def _shift(self) -> None:
        for number in range(self._files - 1, 0, -1):
            older = self.path if number == 1 else numbered(self.path, number - 1)
            with contextlib.suppress(FileNotFoundError):
                os.replace(older, numbered(self.path, number))

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._file = -1, (-1, -1)


def numbered(path: Path, number: int) -> Path:
    """The file of a log that was renamed so often."""
    return path.with_name(f"{path.name}.{number}")


def log_files(path: Path) -> list[Path]:
    """The files of a log that are there, the oldest first."""
    numbers = [int(word) for found in path.parent.glob(f"{path.name}.*") if (word := found.name[len(path.name) + 1 :]).isdecimal()]
    newest = [path] if path.exists() else []
    return [*(numbered(path, number) for number in sorted(numbers, reverse=True) if number < MOST_FILES), *newest]
