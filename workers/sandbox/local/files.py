"""File operations below a sandbox's folders, seen from outside. All of it blocks; callers use a thread.

The tree belongs to a stranger: a path is resolved first and refused when it leaves, and only regular files are opened (a FIFO would
block, a device has no end).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from workers.sandbox import archives
from workers.sandbox.errors import FileTrouble, SandboxFileError
from workers.sandbox.results import EntryKind, FileEntry

TROUBLES: dict[int, FileTrouble] = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_a_folder",
    errno.EISDIR: "not_a_file",
    errno.ENXIO: "not_a_file",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EFBIG: "too_large",
}


class ConfinedFiles:
    """The files of one sandbox."""

    def __init__(self, start: Path, allowed: Sequence[Path]) -> None:
        self._start = start
        self._allowed = [folder.resolve() for folder in allowed]

    def resolve(self, path: str) -> Path:
        """Where a path really leads.

        Raises:
            SandboxFileError: outside of the sandbox.
        """
        if "\0" in path:
            raise SandboxFileError(path.replace("\0", "\\0"), "not_found", "a path holds no NUL byte")
        with _troubles_of(path):
            target = Path(os.path.realpath(self._start / path))
        if not any(target == folder or folder in target.parents for folder in self._allowed):
            raise SandboxFileError(path, "outside", f"paths end below {self._start}")
        return target

    def read(self, path: str, max_bytes: int) -> bytes:
        target = self.resolve(path)
        with _troubles_of(path), open(os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise SandboxFileError(path, "not_a_file")
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise SandboxFileError(path, "too_large", f"{found.st_size:,} bytes, at most {max_bytes:,} are read")
        return content

    def write(self, path: str, content: bytes, *, executable: bool) -> None:
        target = self.resolve(path)
        with _troubles_of(path):
            target.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW
            with open(os.open(target, flags, 0o644), "wb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise SandboxFileError(path, "not_a_file")
                file.truncate()
                file.write(content)
                if executable:
                    os.fchmod(file.fileno(), 0o755)

    def list(self, path: str) -> tuple[FileEntry, ...]:
        target = self.resolve(path)
        with _troubles_of(path), os.scandir(target) as entries:
            return tuple(sorted((_entry(entry) for entry in entries), key=lambda entry: entry.name))

    def upload(self, tar: IO[bytes], folder: str, max_bytes: int) -> None:
        target = self.resolve(folder)
        with _troubles_of(folder):
            target.mkdir(parents=True, exist_ok=True)
            archives.unpack(tar, target, max_bytes=max_bytes)

    def download(self, path: str, tar: IO[bytes], max_bytes: int) -> None:
        target = self.resolve(path)
        with _troubles_of(path):
            archives.pack(target, tar, max_bytes=max_bytes)


def _entry(entry: os.DirEntry[str]) -> FileEntry:
    kind: EntryKind = "link" if entry.is_symlink() else "folder" if entry.is_dir() else "file" if entry.is_file() else "other"
    return FileEntry(name=entry.name, kind=kind, size_bytes=entry.stat(follow_symlinks=False).st_size)


@contextlib.contextmanager
def _troubles_of(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SandboxFileError(path, TROUBLES.get(error.errno or 0, "denied"), error.strerror or str(error)) from error
