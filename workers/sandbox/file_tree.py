"""What is done to the files of a sandbox: read, write, list, and trees in and out as tar streams, with bounds both ways. It blocks.

The tree belongs to a stranger, and so do archives.

1. Only regular files are opened (a FIFO would block, a device has no end), and what was one a moment ago is looked at again when it is
   open. Nothing is read for longer than it was when it was opened.
2. Nothing recurses, and nothing is held a name: bounds on bytes, names and the length of paths are kept while the work is done.
3. No member of an archive is written outside of its folder: names and links are followed part by part, and one that leads out is refused.
   What is in the way of a member is removed, so no link is written through and no FIFO is opened. Devices are refused, modes and owners are
   a user's.
4. Owners are never looked up by name: the answer comes from libraries that the tree itself may provide.

Standard library only: it also runs inside, loaded by path, where nothing can be imported any more (`local/file_helper.py`), and in the
Python of an image.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

tarfile.pwd = tarfile.grp = None  # type: ignore[attr-defined]  # see above

MAX_MEMBERS = 200_000
"""A large source tree has some 100,000 files; more is a mistake or an attack on the inodes of the disk."""
MAX_NAMES = 50_000
"""Of one listing: more is nothing that anybody would read, and tens of megabytes on the way."""
MAX_PATH_BYTES = 4095
"""What a call of Linux takes."""
MAX_LINKS = 40
MAX_HEADER_BYTES = 1024 * 1024
"""Of what stands before a member: long names and extended headers are read into memory."""
PIECE_BYTES = 256 * 1024
LATEST_S = 2**33
"""Times of archives may be any number; a file system's may not."""

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
        content = file.read(max_bytes + 1) if found.st_size <= max_bytes else b""
    if len(content) > max_bytes or found.st_size > max_bytes:
        raise TreeError("too_large", f"{found.st_size:,} bytes, at most {max_bytes:,} are read")
    return content


def write(path: Path, content: bytes, *, executable: bool, follow: bool) -> None:
    """Writes or replaces the content of a regular file; folders on the way are made."""
    with _troubles():
        make_folders(path.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | _no_link(follow)
        with open(os.open(path, flags, 0o644), "wb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise TreeError("not_a_file")
            file.truncate()
            file.write(content)
            if executable:
                os.fchmod(file.fileno(), 0o755)


def list_folder(path: Path, *, most: int = MAX_NAMES) -> list[tuple[str, str, int]]:
    """Name, kind and size of what is in a folder, sorted by name."""
    found: list[tuple[str, str, int]] = []
    with _troubles(), os.scandir(path) as entries:
        for entry in entries:
            if len(found) >= most:
                raise TreeError("too_large", f"more than {most:,} names")
            with contextlib.suppress(FileNotFoundError):  # it went away meanwhile
                found.append((entry.name, _kind(entry), entry.stat(follow_symlinks=False).st_size))
    return sorted(found)


def make_folders(path: Path) -> None:
    """Makes a folder and those on the way to it, however many are missing."""
    missing = []
    while True:
        try:
            os.mkdir(path, 0o755)
            break
        except FileNotFoundError:
            missing.append(path)
            path = path.parent
        except FileExistsError:
            if not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
            break
    while missing:
        with contextlib.suppress(FileExistsError):
            os.mkdir(missing.pop(), 0o755)


# -- out ----------------------------------------------------------------------------------------------------------------------------------


def pack(path: Path, stream: IO[bytes], max_bytes: int) -> None:
    """Writes a file or a folder, named by its last part. Links are kept as links; what is neither file, folder nor link is left out.

    What changes meanwhile is packed as it was when it was met; a file that became shorter is filled up with zeros, as `tar` does.
    """
    total = members = 0
    links: dict[tuple[int, int], str] = {}
    waiting = [(str(path), path.name if path.name not in ("", "..") else "folder")]
    with _troubles(), tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        while waiting:
            at, name = waiting.pop()
            members += 1
            _check_bounds(total, max_bytes, members + len(waiting))
            _check_length(at)
            try:
                member, content = _open_member(at, name, links)
            except FileNotFoundError:
                if members == 1:  # missing is a trouble of its own, not an archive without content
                    raise
                continue
            except OSError as error:
                raise TreeError(_trouble(error), f"{error.strerror}: {shown(name)}") from error
            if member is None:
                continue
            with content:
                total += member.size
                _check_bounds(total, max_bytes, members)
                archive.addfile(member, cast("IO[bytes]", content))
            cast(Any, archive).members.clear()  # it keeps them all
            if member.isdir():
                try:
                    names = _names(at, MAX_MEMBERS - members - len(waiting))
                except OSError as error:
                    raise TreeError(_trouble(error), f"{error.strerror}: {shown(name)}") from error
                waiting += [(f"{at}/{inner}", f"{name}/{inner}") for inner in reversed(names)]


class _Content:
    """The bytes of a file, exactly as many as were promised."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, size: int) -> bytes:
        parts = []
        while size and (part := os.read(self._descriptor, size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts) + bytes(size)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _open_member(at: str, name: str, links: dict[tuple[int, int], str]) -> tuple[tarfile.TarInfo | None, _Content]:
    """The header of what is there, and its content; None = it is not packed."""
    found = os.lstat(at)
    content = _Content(-1)
    member = tarfile.TarInfo(name)
    if stat.S_ISREG(found.st_mode):
        try:
            content = _Content(os.open(at, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # it became a link, a FIFO, a socket
                return None, content
            raise
        found = os.fstat(content._descriptor)
        if not stat.S_ISREG(found.st_mode):
            content.__exit__()
            return None, _Content(-1)
        known = links.setdefault((found.st_dev, found.st_ino), name) if found.st_nlink > 1 else name
        if known != name:
            member.type, member.linkname = tarfile.LNKTYPE, known
        else:
            member.size = found.st_size
    elif stat.S_ISDIR(found.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(found.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(at)
    else:
        return None, content
    member.mode = stat.S_IMODE(found.st_mode)
    member.mtime = int(found.st_mtime)
    return member, content


def _names(folder: str, most: int) -> list[str]:
    """What is in a folder that was one a moment ago."""
    names: list[str] = []
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return names
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if len(names) > most:
                    raise TreeError("too_large", f"more than {MAX_MEMBERS:,} files")
                names.append(entry.name)
    finally:
        os.close(descriptor)
    return sorted(names)


# -- in -----------------------------------------------------------------------------------------------------------------------------------


class _Member(tarfile.TarInfo):
    """A member whose headers are not longer than a name can be. Those of sparse files, which say of each piece where it is, are refused."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE):
            if self.size > MAX_HEADER_BYTES:
                raise tarfile.ReadError(f"a header of {self.size:,} bytes, at most {MAX_HEADER_BYTES:,} are read")
        elif self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse file: pack it without --sparse")
        return cast(tarfile.TarInfo, super()._proc_member(archive))  # type: ignore[misc]

    def _refuse_sparse(self, *_: object) -> None:
        raise tarfile.ReadError("a sparse file: pack it without --sparse")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


def unpack(stream: IO[bytes], folder: Path, max_bytes: int) -> None:
    """Extracts below a folder, which is made when missing. Bounds are checked before each member, so what came before a breach stays."""
    total = members = 0
    with _troubles():
        make_folders(folder)
        top = os.path.realpath(folder)
        try:
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
                while (member := archive.next()) is not None:
                    cast(Any, archive).members.clear()  # it keeps them all
                    if member.size < 0:
                        raise TreeError("bad_archive", f"{shown(member.name)} has {member.size:,} bytes")
                    total += member.size
                    members += 1
                    _check_bounds(total, max_bytes, members)
                    try:
                        _extract(archive, member, top)
                    except OSError as error:
                        raise TreeError(_trouble(error), f"{error.strerror}: {shown(member.name)}") from error
        except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:  # the last two: numbers and names that are none
            raise TreeError("bad_archive", str(error)) from error
        except RecursionError:
            raise TreeError("bad_archive", "headers that only announce the next one") from None


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, top: str) -> None:
    at = _place(top, member.name.lstrip("/"), follow_last=member.isdir())
    if member.isdir():
        make_folders(Path(at))
        return
    if at == top:
        raise TreeError("outside", f"{shown(member.name)} is the folder itself")
    make_folders(Path(at).parent)
    if member.issym():
        if member.linkname.startswith("/"):
            raise TreeError("outside", f"{shown(member.name)} is a link to an absolute path")
        _place(top, f"{os.path.dirname(os.path.relpath(at, top))}/{member.linkname}", follow_last=True)
        _clear(at)
        os.symlink(member.linkname, at)
    elif member.islnk():
        target = _place(top, member.linkname.lstrip("/"), follow_last=False)
        if target != at:
            _clear(at)
            os.link(target, at, follow_symlinks=False)
    elif member.isreg():
        _clear(at)
        _write_member(archive, member, at)
    else:
        raise TreeError("outside", f"{shown(member.name)} is a special file")


def _write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, at: str) -> None:
    content = archive.extractfile(member)
    assert content is not None  # it is a regular file
    executable = 0o111 & member.mode if member.mode & 0o100 else 0
    with open(os.open(at, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as file:
        left = member.size
        while left:
            piece = content.read(min(left, PIECE_BYTES))
            if not piece:
                raise TreeError("bad_archive", f"it ends within {shown(member.name)}")
            file.write(piece)
            left -= len(piece)
        file.flush()
        os.fchmod(file.fileno(), 0o600 | (member.mode & 0o044) | executable)
        modified_s = min(max(0, int(member.mtime)), LATEST_S)
        os.utime(file.fileno(), (modified_s, modified_s))


def _clear(at: str) -> None:
    """Removes what is in the way, but no folder."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(at)


def _place(top: str, path: str, *, follow_last: bool) -> str:
    """Where a path leads below a folder, links followed; what is not there leads on by its name.

    Raises:
        TreeError: out of it.
    """
    left = path.split("/")[::-1]
    here, links = top, 0
    while left:
        part = left.pop()
        if part in ("", "."):
            continue
        if part == "..":
            if here == top:
                raise TreeError("outside", f"{shown(path)} leads out of the folder")
            here = os.path.dirname(here)
            continue
        at = f"{here}/{part}"
        _check_length(at)
        try:
            is_link = stat.S_ISLNK(os.lstat(at).st_mode)
        except FileNotFoundError:
            is_link = False
        if not is_link or (not follow_last and not any(part not in ("", ".") for part in left)):
            here = at
            continue
        links += 1
        target = os.readlink(at)
        if links > MAX_LINKS or target.startswith("/"):
            raise TreeError("outside", f"{shown(path)} leads through a link that may lead out of the folder")
        left += target.split("/")[::-1]
    return here


# -- both ---------------------------------------------------------------------------------------------------------------------------------


def shown(name: str) -> str:
    """A name as a text that anything can write."""
    text = name.encode("utf-8", "backslashreplace").decode()
    return repr(text if len(text) <= 200 else f"{text[:200]}...")


def _kind(entry: os.DirEntry[str]) -> str:
    return "link" if entry.is_symlink() else "folder" if entry.is_dir() else "file" if entry.is_file() else "other"


def _no_link(follow: bool) -> int:
    return 0 if follow else os.O_NOFOLLOW


def _check_length(path: str) -> None:
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise TreeError("too_large", f"a path of more than {MAX_PATH_BYTES:,} bytes")


def _check_bounds(total: int, max_bytes: int, members: int) -> None:
    if total > max_bytes:
        raise TreeError("too_large", f"more than {max_bytes:,} bytes")
    if members > MAX_MEMBERS:
        raise TreeError("too_large", f"more than {MAX_MEMBERS:,} files")


def _trouble(error: OSError) -> str:
    return TROUBLES.get(error.errno or 0, "denied")


@contextlib.contextmanager
def _troubles() -> Iterator[Any]:
    try:
        yield
    except OSError as error:
        raise TreeError(_trouble(error), error.strerror or str(error)) from error
