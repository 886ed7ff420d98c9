"""`flock` on a file, with a bounded wait.

The lock belongs to the open file: it is free when the last descriptor of it is closed, in whichever process. So a descriptor handed to a
child keeps the lock after its first owner was killed, and a `kill -9` frees it without anybody's help. On Linux and macOS a waiting
exclusive lock does not hold up new shared ones, which the keeper relies on.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import TracebackType


class Mode(IntEnum):
    """How a lock is held."""

    SHARED = fcntl.LOCK_SH
    """With others that share it."""
    EXCLUSIVE = fcntl.LOCK_EX
    """Alone."""


def is_held(path: Path) -> bool:
    """Whether a process holds a lock on a file; False where that cannot be seen (no /proc, a file system with device numbers of its own).

    Takes no lock to find out: a look never stands in the way of who wants it.
    """
    try:
        there, locks = os.stat(path), Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return False
    name = f" {os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}:{there.st_ino} "
    return any(name in line and " FLOCK " in line and "->" not in line for line in locks.splitlines())


class FileLock:
    """One open lock file. Made unlocked; `close` releases, unless a child has the descriptor too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def fileno(self) -> int:
        """The descriptor, to hand to a child that shall hold the lock too."""
        return self._fd

    def try_lock(self, mode: Mode) -> bool:
        """Takes the lock if it is free for this mode; never waits."""
        try:
            fcntl.flock(self._fd, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock(self, mode: Mode) -> None:
        """Takes the lock, however long that takes."""
        fcntl.flock(self._fd, mode)

    def lock_within(self, mode: Mode, timeout_s: float, *, nudge: Callable[[], None] | None = None, nudge_after_s: float = 1.0) -> bool:
        """Takes the lock, or answers False after `timeout_s` seconds; the lock object is then closed.

        `flock` knows no time limit, so a thread waits in it; when the lock is taken the thread is gone. When the wait is given up the file
        is closed: the thread's call still holds the open file, gets the lock some day, returns, and with that the last reference goes and
        the lock with it.

        Args:
            nudge: called once when the lock is still held after `nudge_after_s`, to get it freed; what it raises ends the wait.
        """
        if self.try_lock(mode):
            return True
        granted = threading.Event()
        failure: list[OSError] = []

        def wait() -> None:
            try:
                self.lock(mode)
            except OSError as error:
                failure.append(error)
            granted.set()

        waiter = threading.Thread(target=wait, name=f"lock {self.path.name}", daemon=True)
        waiter.start()
        deadline = time.monotonic() + timeout_s
        try:
            if nudge is not None and not granted.wait(min(nudge_after_s, timeout_s)):
                nudge()
            is_granted = granted.wait(max(0.0, deadline - time.monotonic()))
        except BaseException:
            self.close()
            raise
        if not is_granted:
            self.close()
            return False
        waiter.join()
        if failure:
            raise failure[0]
        return True

    def close(self) -> None:
        """Closes this descriptor; the lock is free when it was the last. Closing twice is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
