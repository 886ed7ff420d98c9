"""Copies what a sandbox has changed, exactly: `python -I -S tree_copy.py take|restore`. Standard library only, nothing of Rollstream.

A process of its own: a large tree takes seconds, which the event loop must not feel, and ends with whoever asked.

    <- {"from": path, "to": path, "layers": [name, ...], "max_bytes", "max_files", "floor_bytes"}    a line of JSON; the pipe stays open
    -> {"bytes", "files"} or {"trouble": "gone" | "too_large" | "full" | "denied", "detail"}         a line of JSON, the last

1. A layer is a folder below `from`; one that is not there is left out. What is there arrives with content, holes, modes, times, links,
   names that one file has several of, and the attributes by which an overlay says that a folder of the image is hidden; so do the device
   nodes 0:0 by which it says that a file is removed. Sockets are left out: nobody listens behind a copy.
2. The tree belongs to code that nobody has read. No link is followed, every step goes by descriptor, and depth costs neither descriptors
   nor stack: back up it goes by `..`, and checks that it is where it came from.
3. What its owner closed to himself is opened while it is copied, and closed again. `take` leaves the copy open and writes the mode beside
   it (`MODE_NAME`), so that many may `restore` from one copy at a time; `restore` reads it there.
4. Files are shared with the copy where the file system can (a reflink); elsewhere they are copied. Both count with the blocks they occupy.
5. Between any two steps it may be told to end: the other end of the pipe closes. It puts back what it opened, then ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

FICLONE = 0x40049409
"""ioctl of Linux: this file has the blocks of that one, until one of them is changed."""
PIECE_BYTES = 32 * 1024 * 1024
STEPS_A_LOOK = 256
"""Entries between two looks at the pipe and at the free disk."""
BLOCK_BYTES = 512
MODE_NAME = "user.rollstream.mode"
MAX_DEPTH = 100_000
"""Folders within folders: each is a name in our memory until we are back up."""
NO_CLONE = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM, errno.ETXTBSY})
NO_RANGE = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM})


class TroubleError(Exception):
    """The copy cannot be had; `word` is for programs."""

    def __init__(self, word: str, detail: str) -> None:
        super().__init__(word, detail)
        self.word = word
        self.detail = detail


class ToldToEndError(Exception):
    """Nobody wants it any more."""


@dataclass(slots=True)
class Frame:
    """A folder that is being copied, and how to leave it."""

    mode: int
    """Of the folder as it was found."""
    opened: bool
    """Whether its mode was changed to look into it."""
    found: os.stat_result
    target: tuple[int, int] = (0, 0)
    inner: list[str] = field(default_factory=list)
    """Folders below it that are not copied yet."""

    @property
    def source(self) -> tuple[int, int]:
        return self.found.st_dev, self.found.st_ino


class TreeCopy:
    """One copy of some layers."""

    def __init__(self, asked: dict[str, Any], *, taking: bool) -> None:
        self._from = str(asked["from"])
        self._to = str(asked["to"])
        self._layers = [str(layer) for layer in asked["layers"]]
        self._max_bytes, self._max_files = int(asked["max_bytes"]), int(asked["max_files"])
        self._floor_bytes = int(asked["floor_bytes"])
        self._taking = taking
        self._steps = 0
        self._can_clone = self._can_range = True
        self._links: dict[tuple[int, int], str] = {}
        self._links_fd = -1
        self.bytes = self.files = 0

    def run(self) -> dict[str, int]:
        links = os.path.join(self._to, ".links")
        os.mkdir(links, 0o700)
        self._links_fd = os.open(links, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for layer in self._layers:
                self._copy_layer(layer)
            for name in self._links.values():
                os.unlink(name, dir_fd=self._links_fd)
        finally:
            os.close(self._links_fd)
        os.rmdir(links)
        return {"bytes": self.bytes, "files": self.files}

    # -- folders -----------------------------------------------------------------------------------------------------------------------

    def _copy_layer(self, layer: str) -> None:
        """Walks down and up with one descriptor on either side."""
        target = os.path.join(self._to, layer)
        source_fd, mode, opened = open_folder(os.path.join(self._from, layer), None)
        if source_fd < 0:
            return
        frames = [Frame(mode, opened, os.fstat(source_fd))]
        target_fd = -1
        try:
            os.makedirs(target, mode=0o700, exist_ok=True)
            target_fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            self._fill(frames[-1], source_fd, target_fd)
            while frames:
                frame = frames[-1]
                if frame.inner:
                    name = frame.inner.pop()
                    if len(frames) >= MAX_DEPTH:
                        raise TroubleError("too_large", f"folders more than {MAX_DEPTH:,} deep")
                    inner_fd, mode, opened = open_folder(name, source_fd)
                    if inner_fd < 0:
                        raise TroubleError("gone", "a folder went away while it was copied")
                    os.close(source_fd)
                    source_fd = inner_fd
                    frames.append(Frame(mode, opened, os.fstat(source_fd)))
                    os.mkdir(name, 0o700, dir_fd=target_fd)
                    target_fd = _move(target_fd, name)
                    self._fill(frames[-1], source_fd, target_fd)
                    continue
                left, made = os.dup(source_fd), os.dup(target_fd)
                try:
                    if len(frames) > 1:
                        source_fd, target_fd = _move(source_fd, ".."), _move(target_fd, "..")
                        if _identity(source_fd) != frames[-2].source or _identity(target_fd) != frames[-2].target:
                            raise TroubleError("gone", "a folder was moved while it was copied")
                    self._finish(frame, left, made)  # from above: its own mode may let nobody out
                finally:
                    os.close(left)
                    os.close(made)
                frames.pop()
        except BaseException:
            _close_again(frames, source_fd)
            raise
        finally:
            os.close(source_fd)
            if target_fd >= 0:
                os.close(target_fd)

    def _fill(self, frame: Frame, source_fd: int, target_fd: int) -> None:
        """Copies all that is in a folder but the folders in it."""
        frame.target = _identity(target_fd)
        self._step(frame.found)
        with os.scandir(source_fd) as entries:
            for entry in entries:
                if self._copy_entry(entry.name, source_fd, target_fd):
                    frame.inner.append(entry.name)

    def _finish(self, frame: Frame, source_fd: int, target_fd: int) -> None:
        """Gives a folder what would have been in the way before, or changed by what came into it."""
        _copy_attributes(source_fd, target_fd)
        self._set_mode(source_fd, target_fd, frame.mode, least=0o700)
        os.utime(target_fd, ns=(frame.found.st_atime_ns, frame.found.st_mtime_ns))
        if frame.opened:
            os.fchmod(source_fd, frame.mode)

    # -- what is in them -----------------------------------------------------------------------------------------------------------------

    def _copy_entry(self, name: str, source_fd: int, target_fd: int) -> bool:
        """True for a folder, which is not copied here."""
        found = os.stat(name, dir_fd=source_fd, follow_symlinks=False)
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFDIR:
            return True
        if kind == stat.S_IFSOCK or (kind in (stat.S_IFBLK, stat.S_IFCHR) and (kind == stat.S_IFBLK or found.st_rdev != 0)):
            return False
        if found.st_nlink > 1:
            known = self._links.get((found.st_dev, found.st_ino))
            if known is not None:
                self._step(None)
                try:
                    os.link(known, name, src_dir_fd=self._links_fd, dst_dir_fd=target_fd, follow_symlinks=False)
                except OSError as error:
                    if error.errno != errno.EMLINK:
                        raise
                else:
                    return False
        self._step(found)
        if kind == stat.S_IFREG:
            self._copy_file(name, source_fd, target_fd)
        elif kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=source_fd), name, dir_fd=target_fd)
        elif kind == stat.S_IFIFO:
            os.mkfifo(name, stat.S_IMODE(found.st_mode), dir_fd=target_fd)
        else:
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=target_fd)
        if kind != stat.S_IFREG:
            os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=target_fd, follow_symlinks=False)
        if found.st_nlink > 1 and (found.st_dev, found.st_ino) not in self._links:
            kept = self._links[found.st_dev, found.st_ino] = str(len(self._links))
            os.link(name, kept, src_dir_fd=target_fd, dst_dir_fd=self._links_fd, follow_symlinks=False)
        return False

    def _copy_file(self, name: str, source_fd: int, target_fd: int) -> None:
        with opened_file(name, source_fd) as (source, mode):
            found = os.fstat(source)
            target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=target_fd)
            try:
                self._copy_content(source, target, found)
                _copy_attributes(source, target)
                self._set_mode(source, target, mode, least=0o400)
                os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
            finally:
                os.close(target)

    def _set_mode(self, source: int, target: int, mode: int, *, least: int) -> None:
        """The mode it has, or had when the copy that we restore from was taken."""
        if self._taking and mode & least != least:
            os.setxattr(target, MODE_NAME, str(mode).encode())
            mode |= least
        elif not self._taking:
            with contextlib.suppress(OSError, ValueError):  # most have none
                mode = int(os.getxattr(source, MODE_NAME)) & 0o7777
        os.fchmod(target, mode)

    def _copy_content(self, source: int, target: int, found: os.stat_result) -> None:
        if found.st_size == 0:
            return
        if self._can_clone:
            try:
                fcntl.ioctl(target, FICLONE, source)
            except OSError as error:
                if error.errno not in NO_CLONE:
                    raise
                self._can_clone = False
            else:
                return
        at = 0
        while at < found.st_size:
            try:
                start = os.lseek(source, at, os.SEEK_DATA)
                end = os.lseek(source, start, os.SEEK_HOLE)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # a hole to the end
            self._copy_range(source, target, start, end)
            at = end
        os.ftruncate(target, found.st_size)

    def _copy_range(self, source: int, target: int, at: int, end: int) -> None:
        while at < end:
            piece = min(PIECE_BYTES, end - at)
            copied = 0
            if self._can_range:
                try:
                    copied = os.copy_file_range(source, target, piece, at, at)
                except OSError as error:
                    if error.errno not in NO_RANGE:
                        raise
                    self._can_range = False
            if not self._can_range:
                data = os.pread(source, min(piece, 1024 * 1024), at)
                copied = os.pwrite(target, data, at) if data else 0
            if not copied:  # it has become shorter
                return
            at += copied
            if piece == PIECE_BYTES:
                self._look()

    # -- bounds ------------------------------------------------------------------------------------------------------------------------

    def _step(self, found: os.stat_result | None) -> None:
        """Counts an entry before it is copied; None = one more name of a file that was counted."""
        if found is not None:
            self.files += 1
            self.bytes += found.st_blocks * BLOCK_BYTES
            if self.bytes > self._max_bytes:
                raise TroubleError("too_large", f"more than {self._max_bytes:,} bytes")
            if self.files > self._max_files:
                raise TroubleError("too_large", f"more than {self._max_files:,} files")
        if self._steps % STEPS_A_LOOK == 0:
            self._look()
        self._steps += 1

    def _look(self) -> None:
        readable, _, _ = select.select([0], [], [], 0)
        if readable:  # the question is read: all that can come is the end
            raise ToldToEndError
        disk = os.statvfs(self._to)
        if disk.f_bavail * disk.f_frsize < self._floor_bytes:
            raise TroubleError("full", f"less than {self._floor_bytes:,} bytes of disk are left")
        os.utime(self._to)  # its age is how long nobody has worked on it


# -- steps that know no copy -------------------------------------------------------------------------------------------------------------


def open_folder(name: str, parent: int | None) -> tuple[int, int, bool]:
    """A folder as a descriptor, its mode, and whether that was changed to open it. -1 = there is none of that name."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        return -1, 0, False
    try:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        opened = mode & 0o700 != 0o700 and os.geteuid() != 0
        if opened:
            os.chmod(f"/proc/self/fd/{handle}", mode | 0o700)
        return os.open(f"/proc/self/fd/{handle}", flags & ~os.O_NOFOLLOW), mode, opened
    finally:
        os.close(handle)


@contextlib.contextmanager
def opened_file(name: str, parent: int) -> Iterator[tuple[int, int]]:
    """A regular file to read from, and its mode; that is as it was afterwards."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise TroubleError("gone", "a file became something else while it was copied")
        mode = stat.S_IMODE(found.st_mode)
        closed = not mode & 0o400 and os.geteuid() != 0
        if closed:
            os.chmod(f"/proc/self/fd/{handle}", mode | 0o400)
        try:
            source = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                yield source, mode
            finally:
                os.close(source)
        finally:
            if closed:
                os.chmod(f"/proc/self/fd/{handle}", mode)
    finally:
        os.close(handle)


def _copy_attributes(source: int, target: int) -> None:
    """Those that a user may set: an overlay in a user namespace writes its own there too."""
    try:
        names = os.listxattr(source)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return
    for name in names:
        if name.startswith("user.") and name != MODE_NAME:
            os.setxattr(target, name, os.getxattr(source, name))


def _move(descriptor: int, name: str) -> int:
    """The folder of that name, in place of the one it is in."""
    moved = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
    os.close(descriptor)
    return moved


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _close_again(frames: list[Frame], source_fd: int) -> None:
    """Puts the modes of opened folders back on the way up; `source_fd` is the last of them, or below it."""
    here = os.dup(source_fd)
    try:
        for frame in reversed(frames):
            if _identity(here) != frame.source:
                here = _move(here, "..")
            if _identity(here) != frame.source:
                return
            above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
            if frame.opened:
                os.fchmod(here, frame.mode)
            os.close(here)
            here = above
    except OSError:  # what goes away needs no mode
        return
    finally:
        os.close(here)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C for the worker: it closes the pipe when it is done with us
    line = sys.stdin.buffer.raw.readline()  # type: ignore[union-attr]  # unbuffered: what follows is looked for by `select`
    answer: dict[str, Any]
    try:
        answer = TreeCopy(json.loads(line), taking=sys.argv[1] == "take").run()
    except TroubleError as error:
        answer = {"trouble": error.word, "detail": error.detail}
    except ToldToEndError:
        return
    except OSError as error:
        words = {errno.ENOENT: "gone", errno.ESTALE: "gone", errno.ENOSPC: "full", errno.EDQUOT: "full"}
        answer = {"trouble": words.get(error.errno or 0, "denied"), "detail": error.strerror or str(error)}
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
