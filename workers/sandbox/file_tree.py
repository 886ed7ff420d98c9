"""What is done to the files of a sandbox: read, write, list, and trees in and out as tar streams, with bounds both ways. It blocks.

The tree belongs to a stranger, and so do archives: only regular files are opened (a FIFO would block, a device has no end), and extraction
uses the `data` filter (no way out of the folder by names or links, no devices, no foreign owners or modes). Owners are never looked up by
name: the answer comes from libraries that the tree itself may provide.

Standard library only: it also runs inside, loaded by path, where nothing can be imported any more (`local/file_helper.py`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

tarfile.pwd = tarfile.grp = None  # type: ignore[attr-defined]  # see above

MAX_MEMBERS = 200_000
"""A large source tree has some 100,000 files; more is a mistake or an attack on the inodes of the disk."""

TROUBLES: Mapping[int, str] = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_a_folder",
    errno.EISDIR: "not_a_file",
    errno.ENXIO: "not_a_file",
    errno.ELOOP: "not_found",
    errno.ENAMETOOLONG: "not_found",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EFBIG: "too_large",
}


class TreeError(Exception):
    """Something is wrong with the path or the archive; `trouble` is a `FileTrouble` of `errors.py`."""

    def __init__(self, trouble: str, detail: str = "") -> None:
        super().__init__(trouble, detail)
        self.trouble = trouble
        self.detail = detail


def read(path: Path, max_bytes: int, *, follow: bool) -> bytes:
    """The content of a regular file; `follow` = the last part may be a link."""
    with _troubles(), open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | _no_link(follow)), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise TreeError("not_a_file")
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise TreeError("too_large", f"{found.st_size:,} bytes, at most {max_bytes:,} are read")
    return content


def write(path: Path, content: bytes, *, executable: bool, follow: bool) -> None:
    """Writes or replaces the content of a regular file; folders on the way are made."""
    with _troubles():
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | _no_link(follow)
        with open(os.open(path, flags, 0o644), "wb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise TreeError("not_a_file")
            file.truncate()
            file.write(content)
            if executable:
                os.fchmod(file.fileno(), 0o755)


def list_folder(path: Path) -> list[tuple[str, str, int]]:
    """Name, kind and size of what is in a folder, sorted by name."""
    with _troubles(), os.scandir(path) as entries:
        return sorted((entry.name, _kind(entry), entry.stat(follow_symlinks=False).st_size) for entry in entries)


def pack(path: Path, stream: IO[bytes], max_bytes: int) -> None:
    """Writes a file or a folder, named by its last part. Links are kept as links; what is neither file, folder nor link is left out."""
    total = members = 0

    def admit(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        nonlocal total, members
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            return None
        total += member.size
        members += 1
        _check_bounds(total, max_bytes, members)
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with _troubles():
        path.lstat()  # missing is a trouble of its own, not an archive without content
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            archive.add(path, arcname=path.name, filter=admit)


def extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """One member by the `data` filter."""
    try:
        archive.extract(member, folder, filter="data")
    except tarfile.FilterError as error:
        raise TreeError("outside", str(error)) from error


def unpack(
    stream: IO[bytes], folder: Path, max_bytes: int, *, extract: Callable[[tarfile.TarFile, tarfile.TarInfo, Path], None] = extract
) -> None:
    """Extracts below a folder, which is made when missing. Bounds are checked before each member, so what came before a breach stays."""
    total = members = 0
    with _troubles():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    total += member.size
                    members += 1
                    _check_bounds(total, max_bytes, members)
                    extract(archive, member, folder)
        except tarfile.TarError as error:
            raise TreeError("bad_archive", str(error)) from error


def _kind(entry: os.DirEntry[str]) -> str:
    return "link" if entry.is_symlink() else "folder" if entry.is_dir() else "file" if entry.is_file() else "other"


def _no_link(follow: bool) -> int:
    return 0 if follow else os.O_NOFOLLOW


def _check_bounds(total: int, max_bytes: int, members: int) -> None:
    if total > max_bytes:
        raise TreeError("too_large", f"more than {max_bytes:,} bytes")
    if members > MAX_MEMBERS:
        raise TreeError("too_large", f"more than {MAX_MEMBERS:,} files")


@contextlib.contextmanager
def _troubles() -> Iterator[Any]:
    try:
        yield
    except OSError as error:
        raise TreeError(TROUBLES.get(error.errno or 0, "denied"), error.strerror or str(error)) from error
