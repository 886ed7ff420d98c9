"""Whether the process that had a worker's stable name is dead: known at once on the machine where it ran.

The name in Redis lapses by itself, a lease after its process died; until then a successor cannot tell a dead process from a slow one.
The operating system can: a file lock ends with its process, also by `kill -9`. So who gets the lock knows that its predecessor on this
machine is dead, reads from the file which boot that was, and takes the name from that boot without waiting. A predecessor that is
merely frozen still has the lock: its name is waited for, and what it does later is fenced, as ever.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from pipeline.embedded.locks import FileLock, Mode
from pipeline.folders import make_private_folder


class NameLock:
    """The lock of one name; a context manager that holds it, once got, to its end.

    Args:
        folder: on a disk of this machine.
        name: of the worker, with its namespace.
        boot: of this process.
    """

    def __init__(self, folder: Path, name: str, boot: str) -> None:
        self._path = folder / f"{name}.lock"
        self._boot = boot
        self._lock: FileLock | None = None
        self._dead = ""

    def dead_boot(self) -> str:
        """The boot that had this name on this machine and is dead; empty when there was none, or it may live."""
        if self._lock is None:
            make_private_folder(self._path.parent)
            lock = FileLock(self._path)
            if not lock.try_lock(Mode.EXCLUSIVE):
                lock.close()
                return ""
            self._lock = lock
            self._dead = self._path.read_text(encoding="ascii", errors="replace").strip()
            self._path.write_text(self._boot, encoding="ascii")
        return self._dead

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._lock is not None:
            self._lock.close()
