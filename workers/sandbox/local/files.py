"""Files below a sandbox's folders, where there are no walls: seen from outside, and confined by us. All of it blocks; callers use a thread.

A path is resolved first and refused when it leaves. This keeps mistakes in; it is no wall, as nothing of a sandbox without walls is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

from workers.sandbox import file_tree
from workers.sandbox.errors import FileTrouble, SandboxFileError
from workers.sandbox.results import EntryKind, FileEntry


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
        check_path(path)
        try:
            target = Path(os.path.realpath(self._start / path))
        except OSError as error:
            raise SandboxFileError(path, "denied", error.strerror or str(error)) from error
        except RecursionError:  # a chain of links longer than any call would follow
            raise SandboxFileError(path, "not_found", "too many links") from None
        if not any(target == folder or folder in target.parents for folder in self._allowed):
            raise SandboxFileError(path, "outside", f"paths end below {self._start}")
        return target

    def read(self, path: str, max_bytes: int) -> bytes:
        with _naming(path):
            return file_tree.read(self.resolve(path), max_bytes, follow=False)

    def write(self, path: str, content: bytes, *, executable: bool) -> None:
        with _naming(path):
            file_tree.write(self.resolve(path), content, executable=executable, follow=False)

    def list(self, path: str) -> tuple[FileEntry, ...]:
        with _naming(path):
            return entries(file_tree.list_folder(self.resolve(path)))

    def upload(self, tar: IO[bytes], folder: str, max_bytes: int) -> None:
        with _naming(folder):
            file_tree.unpack(tar, self.resolve(folder), max_bytes)

    def download(self, path: str, tar: IO[bytes], max_bytes: int) -> None:
        with _naming(path):
            file_tree.pack(self.resolve(path), tar, max_bytes)

    def close(self) -> None:
        """Nothing is held."""


def check_path(path: str) -> None:
    """Refuses what no file system can take."""
    if "\0" in path:
        raise SandboxFileError(path.replace("\0", "\\0"), "not_found", "a path holds no NUL byte")


def entries(found: Sequence[tuple[str, str, int]]) -> tuple[FileEntry, ...]:
    return tuple(FileEntry(name=name, kind=cast(EntryKind, kind), size_bytes=size) for name, kind, size in found)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except file_tree.TreeError as error:
        raise SandboxFileError(path, cast(FileTrouble, error.trouble), error.detail) from error
