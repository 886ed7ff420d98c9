"""Files of launchers that are dead, and whose name nobody took again; a launcher that takes it again does away with them itself.

Invariants:

- Only under the lock of the name: who has it knows that no launcher of the name lives on this machine.
- While a process that a note names runs, all of that name stays: by the note its successor, or `ops/launch down`, ends it.
- The lock goes after the rest, in a later round: it holds the boot, by which a successor need not wait for a lease.
- Only files of this user that a launcher makes.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

from ops.node.files import is_at, read_note
from pipeline.embedded.locks import FileLock, Mode
from workers.stages.measures import FILE_SUFFIX

KINDS = (".json", ".new", ".password", ".password.new")


def sweep_dead(folder: Path, *, older_s: float, dry_run: bool) -> int:
    """Removes them; returns how many files and folders that are.

    Args:
        folder: `RUN/nodes`.
        older_s: a lock that is younger belongs to a launcher that may come again at once.
    """
    return sum(_of_name(path, older_s, dry_run=dry_run) for path in sorted(folder.glob("*.lock")) if _is_ours(path))


def _of_name(path: Path, older_s: float, *, dry_run: bool) -> int:
    with FileLock(path) as lock:
        is_old = time.time() - os.fstat(lock.fileno()).st_mtime >= older_s
        if not is_old or not lock.try_lock(Mode.EXCLUSIVE) or not is_at(lock, path):
            return 0
        name = path.name.removesuffix(".lock")
        note = read_note(path.with_name(f"{name}.json"))
        if note is not None and note.left:
            return 0
        measures = path.with_name(f"{name}.measures")
        files = [file for kind in KINDS if _is_ours(file := path.with_name(f"{name}{kind}"))]
        rest = len(files) + measures.is_dir()
        if dry_run:
            return rest or 1
        for file in files:
            file.unlink(missing_ok=True)
        if measures.is_dir():
            _remove_measures(measures)
        if not rest:
            path.unlink(missing_ok=True)
        elif files or not measures.is_dir():
            os.utime(path)
        return rest or 1


def _remove_measures(folder: Path) -> None:
    """With something in it that is none of the node's it stays."""
    for file in folder.glob(f"*{FILE_SUFFIX}"):
        if _is_ours(file):
            file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _is_ours(path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
    return False
