"""SIF files: a header, a table, and (for images of sandboxes) one squashfs with the files.

    byte 32        "SIF_MAGIC\\0"
    byte 88        how many entries the table may have (i64, little endian); byte 96: where it begins
    an entry       type (i32), used (bool), id, group, link (u32), offset and size (i64) of its data, then what is not needed here

The files are unpacked by `unsquashfs`, which reads the squashfs where it lies in the file, or by Apptainer where that is not installed.
Both write what the squashfs says, so they are watched while they do, and the tree is made tame before anything else reads it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workers.sandbox.errors import ImageError
from workers.sandbox.images.apptainer import Apptainer
from workers.sandbox.images.entries import BadArchive
from workers.sandbox.images.locks import Say, say_nothing
from workers.sandbox.images.programs import ProgramFailed, run_program
from workers.sandbox.images.records import Contents
from workers.sandbox.images.tree_writer import Bounds, Written
from workers.sandbox.images.trees import make_tame, measure

_MAGIC, _MAGIC_AT = b"SIF_MAGIC\0", 32
_TABLE_AT = 88
_ENTRY = struct.Struct("<i?IIIqq")
_ENTRY_BYTES = 585
_PARTITION = 0x4004
_SQUASHFS = b"hsqs"
_MAX_ENTRIES = 256
_MIN_WATCH_S = 0.5
_WATCH_SHARE = 10
"""A look at the growing tree is a tenth of the time at most."""
_MAX_SCRIPT_BYTES = 256 * 1024
_NOT_SUPERUSER = "because you're not superuser"
_ENV_SCRIPT = (".singularity.d", "env", "10-docker2singularity.sh")
_EXPORT = re.compile(r'export ([A-Za-z_][A-Za-z0-9_]*)="(?:\$\{\1:-"(.*)"\}|(.*))"')

# what Apptainer does to a value: escapes it for a shell, then quotes that as Go does
_SHELL_ESCAPE = re.compile(r'\\(["\\$`])')
_GO_ESCAPE = re.compile(r'\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|([abfnrtv"\\]))')
_GO_LETTERS = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Squashfs:
    """Where a file has its file system."""

    offset: int
    size: int


def find_squashfs(path: Path) -> Squashfs:
    """The file system in a SIF, or a bare squashfs.

    Raises:
        BadArchive: it is neither, or ends too early.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(128)
        if head.startswith(_SQUASHFS):
            return Squashfs(offset=0, size=size)
        if len(head) < 128 or not head.startswith(_MAGIC, _MAGIC_AT):
            raise BadArchive("it is no SIF file")
        count, begin = struct.unpack_from("<qq", head, _TABLE_AT)
        if not (0 <= count <= _MAX_ENTRIES and 0 < begin < size):
            raise BadArchive("its table is damaged")
        file.seek(begin)
        table = file.read(count * _ENTRY_BYTES)
        for place in range(0, len(table) - _ENTRY.size, _ENTRY_BYTES):
            kind, is_used, _, _, _, offset, length = _ENTRY.unpack_from(table, place)
            if kind != _PARTITION or not is_used:
                continue
            if not 0 < offset < offset + length <= size:
                raise BadArchive("it ends in the middle of its file system: a copy that was cut off")
            file.seek(offset)
            if file.read(len(_SQUASHFS)) == _SQUASHFS:
                return Squashfs(offset=offset, size=length)
    raise BadArchive("it has no squashfs in it")


def unpack_sif(
    image: str,
    path: Path,
    root: Path,
    bounds: Bounds,
    apptainer: Apptainer,
    timeout_s: float,
    say: Say = say_nothing,
    *,
    stop: threading.Event | None = None,
) -> Written:
    """Unpacks a SIF into an empty folder.

    Args:
        stop: when it is set, the unpacking is given up.

    Raises:
        BadArchive: it is no SIF, damaged, or larger than the bounds.
        ImageError: no program for it, or it failed.
    """
    found = find_squashfs(path)
    program = shutil.which("unsquashfs")
    root.rmdir()
    with _watched(root, bounds, stop) as ended:
        try:
            if program:
                _unsquash(program, path, found, root, timeout_s, ended)
            elif apptainer.program:
                apptainer.unpack(image, path, root, timeout_s, say, stop=ended)
            else:
                raise ImageError(
                    image, "unsquashfs or Apptainer is needed to unpack a SIF: install squashfs-tools, or set ROLLSTREAM_IMAGE_APPTAINER"
                )
        except (ProgramFailed, ImageError) as error:
            if not ended.is_set() or (stop is not None and stop.is_set()):
                raise ImageError(image, str(error)) from error
    size, entries = measure(root)
    if ended.is_set() or size > bounds.max_bytes or entries > bounds.max_entries:
        raise BadArchive(
            f"it unpacks to more than an image may have ({bounds.max_bytes / 1024**3:,.3g} GiB, {bounds.max_entries:,} entries)"
        )
    special, bits = make_tame(root)
    return Written(n_bytes=size, entries=entries, special_left_out=special, bits_dropped=bits)


def _unsquash(program: str, path: Path, found: Squashfs, root: Path, timeout_s: float, stop: threading.Event) -> None:
    argv = [program, "-n", "-q", "-no-xattrs", "-o", str(found.offset), "-d", str(root), str(path)]
    try:
        run_program(argv, timeout_s, stop=stop)
    except ProgramFailed as error:
        # as an ordinary user it leaves out devices, says so and ends with 2; no image needs them
        if error.code != 2 or not all(_NOT_SUPERUSER in line for line in error.said):
            raise


@contextlib.contextmanager
def _watched(root: Path, bounds: Bounds, stop: threading.Event | None) -> Iterator[threading.Event]:
    """An event that is set when a tree grows beyond its bounds, or when its caller wants an end."""
    ended, done = threading.Event(), threading.Event()

    def watch() -> None:
        pause_s = _MIN_WATCH_S
        while not done.wait(pause_s):
            began = time.monotonic()
            size, entries = measure(root)
            if size > bounds.max_bytes or entries > bounds.max_entries or (stop is not None and stop.is_set()):
                ended.set()
                return
            pause_s = max(_MIN_WATCH_S, (time.monotonic() - began) * _WATCH_SHARE)

    watcher = threading.Thread(target=watch, name="size of an image", daemon=True)
    watcher.start()
    try:
        yield ended
    finally:
        done.set()
        watcher.join()


def contents_of(root: Path) -> Contents:
    """The variables that the maker of a Docker image set, as Apptainer keeps them in a script. The script is read, not run."""
    env = {}
    for line in _read_inside(root, _ENV_SCRIPT).decode(errors="surrogateescape").splitlines():
        match = _EXPORT.fullmatch(line.strip())
        if match:
            env[match[1]] = _SHELL_ESCAPE.sub(r"\1", _GO_ESCAPE.sub(_unescaped, match[2] if match[2] is not None else match[3]))
    return Contents(env=env)


def _unescaped(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if digits is None:
        return _GO_LETTERS.get(match[4], match[4])
    return chr(int(digits, 16)) if int(digits, 16) <= 0x10FFFF else match[0]


def _read_inside(root: Path, parts: tuple[str, ...]) -> bytes:
    """A file of a tree by a path without links; empty when there is none. An image may have made any part of it a link out."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.read(folder, _MAX_SCRIPT_BYTES) if stat.S_ISREG(os.fstat(folder).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(folder)
