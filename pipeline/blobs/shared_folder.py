"""Blobs in a folder that machines share: `<dir>/<namespace>/<run>/<job>/<attempt>-<nonce>/<file>`.

Protocol of writing: make the folders, write a file of a name that nobody reads, fsync it, rename it, fsync the folders. Who deletes may
take an empty folder away between two of these; then the writer makes it again, since what is deleted is never its own life.

Every step is by descriptor and follows no link, from the store's own folder on: a link that somebody laid leads nowhere. The folder
itself may be one; it is its owner's to choose.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pipeline.blobs.arrays import as_array, check_record, digest_of, raw_bytes
from pipeline.blobs.errors import BlobMissing, BlobStoreAway, BlobTooLarge, DamagedBlob
from pipeline.blobs.names import FILE, JOB, NAME, RUN, Life, read_uri
from pipeline.blobs.settings import GIB
from pipeline.blobs.store import KeptLife
from pipeline.messages import Blob

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
TRIES = 8
"""A folder that is taken away while one writes into it is made again so often: each time another deletion fell in between."""
UNFINISHED = ".part-"


class SharedFolder:
    """A `BlobStore` in a folder.

    Args:
        root: of the store; made when something is first kept.
        namespace: of the Redis that it belongs to.
    """

    def __init__(self, root: Path, namespace: str = "rs", *, max_bytes: int = GIB, min_free_bytes: int = GIB, fsync: bool = True) -> None:
        self.root = root
        self._namespace = namespace
        self._max_bytes = max_bytes
        self._min_free_bytes = min_free_bytes
        self._fsync = fsync

    # ---- keeping

    def put(self, life: Life, name: str, array: NDArray[Any], *, part: int | None = None) -> Blob:
        if not NAME.match(name):
            raise ValueError(f"expected a lower-case letter, then up to 31 of a-z, 0-9 and _, got {name[:80]!r}")
        file = name if part is None else f"{name}.{part}"
        if not FILE.match(file):
            raise ValueError(f"expected a part from 0 to 999,999, got {part}")
        content = raw_bytes(array)
        if content.nbytes > self._max_bytes:
            raise BlobTooLarge(name, content.nbytes, self._max_bytes)
        try:
            self._write(life, file, content)
        except OSError as error:
            raise BlobStoreAway(f"{self.root}: {error.strerror or error}; workers keep blobs there ([blobs] dir)") from error
        return Blob(
            name=name,
            digest=digest_of(content),
            dtype=array.dtype.name,
            shape=tuple(array.shape),
            n_bytes=content.nbytes,
            uri=life.uri(file),
        )

    def _write(self, life: Life, file: str, content: memoryview) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        free = shutil.disk_usage(self.root).free
        if free - content.nbytes < self._min_free_bytes:
            raise BlobStoreAway(
                f"{self.root} has {free:,} bytes free; {content.nbytes:,} more would leave it less than min_free_bytes "
                f"({self._min_free_bytes:,}): make room, or set another folder ([blobs] dir)"
            )
        for tries_left in reversed(range(TRIES)):
            try:
                with contextlib.ExitStack() as stack:
                    folders = self._make(stack, life)
                    self._write_file(folders[-1], file, content)
                    if self._fsync:
                        for folder in reversed(folders):
                            os.fsync(folder)
                return
            except FileNotFoundError:
                if not tries_left:
                    raise

    def _make(self, stack: contextlib.ExitStack, life: Life) -> list[int]:
        """Descriptors of all folders down to a life's."""
        folders = [os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        stack.callback(os.close, folders[0])
        for name in (self._namespace, *life.folders):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folders[-1])
            folders.append(os.open(name, _FOLDER, dir_fd=folders[-1]))
            stack.callback(os.close, folders[-1])
        return folders

    def _write_file(self, folder: int, file: str, content: memoryview) -> None:
        beside = UNFINISHED + secrets.token_hex(6)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            try:
                at = 0
                while at < len(content):
                    at += os.write(descriptor, content[at:])
                if self._fsync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(beside, file, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside, dir_fd=folder)
            raise

    # ---- having

    def get(self, blob: Blob, job: str) -> NDArray[Any]:
        life, file = read_uri(blob.uri, job)
        check_record(blob, self._max_bytes)
        try:
            with self._opened(life.folders) as folder:
                content = _read(folder, file, blob)
        except (FileNotFoundError, NotADirectoryError):
            raise BlobMissing(blob.uri, str(self.root)) from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise DamagedBlob(blob.uri, "there is a link in its place") from error
            raise BlobStoreAway(f"{self.root}: {error.strerror or error}") from error
        return as_array(blob, content)

    @contextlib.contextmanager
    def _opened(self, folders: Iterable[str]) -> Iterator[int]:
        """A folder below the namespace's, by descriptor."""
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in (self._namespace, *folders):
                inner = os.open(name, _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    # ---- deleting

    def drop(self, lives: Iterable[Life]) -> int:
        return sum(self._delete((life.run, life.job), life.folders[-1]) for life in lives)

    def drop_jobs(self, run: str, jobs: Iterable[str]) -> int:
        return sum(self._delete((run,), job) for job in jobs if RUN.match(run) and JOB.match(job))

    def _delete(self, above: tuple[str, ...], name: str) -> bool:
        """Deletes a folder, and those above it that are empty then."""
        try:
            with self._opened(above) as folder:
                os.stat(name, dir_fd=folder, follow_symlinks=False)
                shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
        except OSError:
            return False
        with contextlib.suppress(OSError):  # one is not empty, or another has done it
            for depth in range(len(above) - 1, -1, -1):
                with self._opened(above[:depth]) as folder:
                    os.rmdir(above[depth], dir_fd=folder)
        return True

    # ---- looking

    def jobs_of(self, run: str) -> set[str]:
        return {name for name in self._names((run,)) if JOB.match(name)} if RUN.match(run) else set()

    def lives(self, run: str = "") -> Iterator[KeptLife]:
        for its_run in [run] if run else self._names(()):
            for job in self._names((its_run,)) if RUN.match(its_run) else ():
                for folder in self._names((its_run, job)) if JOB.match(job) else ():
                    life = Life.of_folder(its_run, job, folder)
                    if life is None:
                        continue
                    with contextlib.suppress(OSError), self._opened(life.folders) as descriptor:
                        yield KeptLife(life, max(0.0, time.time() - os.fstat(descriptor).st_mtime))

    def _names(self, folders: tuple[str, ...]) -> list[str]:
        try:
            with self._opened(folders) as folder:
                return os.listdir(folder)
        except OSError:
            return []


def _read(folder: int, file: str, blob: Blob) -> bytearray:
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb", buffering=0) as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != blob.n_bytes:
            what = f"a file of {status.st_size:,} bytes" if stat.S_ISREG(status.st_mode) else "no regular file"
            raise DamagedBlob(blob.uri, f"expected a file of {blob.n_bytes:,} bytes, found {what}")
        content = bytearray(blob.n_bytes)
        view, at = memoryview(content), 0
        while at < len(content):
            read = opened.readinto(view[at:])
            if not read:
                raise DamagedBlob(blob.uri, f"it ends after {at:,} of {blob.n_bytes:,} bytes")
            at += read
    return content


__all__ = ["SharedFolder"]
