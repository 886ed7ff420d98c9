"""Counts what folders occupy: `python -I -S disk_counter.py`. Standard library only; imports nothing of Rollstream.

A process of its own at the lowest priority: a large tree takes seconds, which neither the event loop nor a busy sandbox should feel.

    <- {"folders": [path, ...], "max_files": n}        a line of JSON each way
    -> {"bytes", "files", "uncounted"}                 `uncounted`: folders that could not be looked into

1. The folders belong to code that nobody has read: no link is followed, every step goes by descriptor, and a change under our feet is an
   entry that is not there any more.
2. A file counts once however many names it has, and with the blocks it occupies, so a sparse file counts as what it is.
3. A folder whose owner took its own permissions away is opened for the count and closed again: hiding is no way around a quota.
4. A count ends early when there are more than `max_files`: the answer is known by then.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterator

DEEPEST = 128
"""Folders within folders. Each level holds a descriptor; real trees have some thirty."""
BLOCK_BYTES = 512


class Count:
    """One count of some folders."""

    def __init__(self, max_files: int) -> None:
        self.max_files = max_files
        self.bytes = self.files = self.uncounted = 0
        self._seen: set[tuple[int, int]] = set()

    def add(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._walk(folder, None, 0)

    def _walk(self, name: str, parent: int | None, depth: int) -> None:
        with opened(name, parent) as descriptor:
            if descriptor < 0 or depth > DEEPEST:
                self.uncounted += 1
                return
            inner: list[str] = []
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    if self.files > self.max_files:
                        return
                    with contextlib.suppress(FileNotFoundError):
                        if self._add_entry(entry.stat(follow_symlinks=False)):
                            inner.append(entry.name)
            for folder in inner:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    self._walk(folder, descriptor, depth + 1)

    def _add_entry(self, found: os.stat_result) -> bool:
        """True for a folder."""
        is_folder = stat.S_ISDIR(found.st_mode)
        if found.st_nlink > 1 and not is_folder:
            identity = (found.st_dev, found.st_ino)
            if identity in self._seen:
                return False
            self._seen.add(identity)
        self.files += 1
        self.bytes += found.st_blocks * BLOCK_BYTES
        return is_folder


@contextlib.contextmanager
def opened(name: str, parent: int | None) -> Iterator[int]:
    """A folder as a descriptor; -1 when it cannot be opened. Its permissions are as they were afterwards."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = descriptor = -1
    before: int | None = None
    try:
        descriptor = os.open(name, flags, dir_fd=parent)
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & 0o100 == 0:  # it may be read and not be entered
            before = mode
            os.fchmod(descriptor, mode | 0o700)
    except PermissionError:
        with contextlib.suppress(PermissionError):
            handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            before = stat.S_IMODE(os.fstat(handle).st_mode)
            os.chmod(f"/proc/self/fd/{handle}", before | 0o700)  # that very folder, whatever has its name by now
            descriptor = os.open(".", flags, dir_fd=handle)
    try:
        yield descriptor
    finally:
        if before is not None and descriptor >= 0:
            with contextlib.suppress(OSError):
                os.fchmod(descriptor, before)
        for number in (descriptor, handle):
            if number >= 0:
                os.close(number)


def count(folders: list[str], max_files: int) -> dict[str, int]:
    counted = Count(max_files)
    for folder in folders:
        counted.add(folder)
    return {"bytes": counted.bytes, "files": counted.files, "uncounted": counted.uncounted}


def main() -> None:
    with contextlib.suppress(OSError):
        os.nice(19)
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        sys.stdout.write(json.dumps(count(asked["folders"], asked["max_files"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
