"""Trees on disk: what is in one, whether it is still that, and how it is removed. Links are never followed.

The **listing** of a tree has a line an entry, in order: kind, mode, SHA-256 of the content or the link's target, path. Its own SHA-256 is
the digest of the tree: it tells whether anything changed, and the listing tells what.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

_HASH_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeListing:
    """What is in a tree."""

    lines: bytes
    digest: str
    size_bytes: int
    """What it takes of the disk; a file with several names counts once."""
    entries: int


def list_tree(root: str | os.PathLike[str]) -> TreeListing:
    """Reads a whole tree.

    Raises:
        OSError: something in it cannot be read.
    """
    lines: list[bytes] = []
    size = 0
    seen: set[tuple[int, int]] = set()
    for path, full, facts in walk(root):
        if facts.st_nlink == 1 or stat.S_ISDIR(facts.st_mode) or (facts.st_dev, facts.st_ino) not in seen:
            seen.add((facts.st_dev, facts.st_ino))
            size += facts.st_blocks * 512
        lines.append(_line(path, full, facts))
    text = b"".join(lines)
    return TreeListing(lines=text, digest=hashlib.sha256(text).hexdigest(), size_bytes=size, entries=len(lines))


def walk(root: str | os.PathLike[str]) -> Iterator[tuple[str, str, os.stat_result]]:
    """Every entry below a folder, parents first, names in order: path below the root, whole path, facts."""
    top = os.fspath(root)
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        inner: list[str] = []
        for name in sorted(os.listdir(f"{top}/{folder}" if folder else top), key=os.fsencode):
            path = f"{folder}/{name}" if folder else name
            full = f"{top}/{path}"
            facts = os.lstat(full)
            if stat.S_ISDIR(facts.st_mode):
                inner.append(path)
            yield path, full, facts
        waiting.extend(reversed(inner))


def _line(path: str, full: str, facts: os.stat_result) -> bytes:
    mode = facts.st_mode
    if stat.S_ISREG(mode):
        with open(full, "rb", buffering=0) as file:
            kind, content = b"f", hashlib.file_digest(file, "sha256").hexdigest()
    elif stat.S_ISLNK(mode):
        kind, content = b"l", hashlib.sha256(os.fsencode(os.readlink(full))).hexdigest()
    elif stat.S_ISDIR(mode):
        kind, content = b"d", "-"
    else:
        kind, content = b"o", "-"
    bits = 0o777 if stat.S_ISLNK(mode) else stat.S_IMODE(mode)
    shown = os.fsencode(path).replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
    return b"%b %03o %b %b\n" % (kind, bits, content.encode(), shown)


def differences(expected: bytes, found: bytes) -> Iterator[str]:
    """What two listings tell apart, in words, by path."""
    before, after = (dict(_by_path(lines)) for lines in (expected, found))
    for path in sorted(before.keys() | after.keys()):
        name = os.fsdecode(path)
        if path not in after:
            yield f"{name}: missing"
        elif path not in before:
            yield f"{name}: not of the image"
        elif before[path] != after[path]:
            yield f"{name}: changed"


def _by_path(lines: bytes) -> Iterator[tuple[bytes, bytes]]:
    for line in filter(None, lines.split(b"\n")):
        kind, mode, content, path = line.split(b" ", 3)
        yield path, b" ".join((kind, mode, content))


def make_tame(root: str | os.PathLike[str]) -> tuple[int, int]:
    """Gives a tree that another program unpacked the promises of ours: readable by its owner, no set-user bits, no devices.

    Returns:
        How many special files were removed, and how many entries lost set-user or set-group bits.
    """
    special = bits = 0
    os.chmod(root, 0o755)
    waiting = [os.fspath(root)]
    while waiting:
        folder = waiting.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                facts = entry.stat(follow_symlinks=False)
                mode = facts.st_mode
                if facts.st_uid != os.geteuid():  # only where root unpacked
                    os.chown(entry.path, os.geteuid(), os.getegid(), follow_symlinks=False)
                if stat.S_ISLNK(mode):
                    continue
                bits += bool(stat.S_IMODE(mode) & 0o6000)
                if stat.S_ISDIR(mode):
                    os.chmod(entry.path, (mode & 0o1777) | 0o700)
                    waiting.append(entry.path)
                elif stat.S_ISREG(mode):
                    os.chmod(entry.path, (mode & 0o777) | 0o400)
                else:
                    os.unlink(entry.path)
                    special += 1
    return special, bits


def measure(root: str | os.PathLike[str]) -> tuple[int, int]:
    """Bytes on disk and entries of a tree that may be changing."""
    size = entries = 0
    waiting = [os.fspath(root)]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as inner:
            for entry in inner:
                with contextlib.suppress(OSError):
                    facts = entry.stat(follow_symlinks=False)
                    size += facts.st_blocks * 512
                    entries += 1
                    if stat.S_ISDIR(facts.st_mode):
                        waiting.append(entry.path)
    return size, entries


def remove_tree(root: str | os.PathLike[str]) -> None:
    """Deletes a tree, however deep, whose folders may be without permissions; another who deletes it too does no harm."""
    folders, waiting = [], [os.fspath(root)]
    while waiting:
        folder = waiting.pop()
        folders.append(folder)
        try:
            entries = list(_scan(folder))
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
    for folder in reversed(folders):
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(folder)


def _scan(folder: str) -> Iterator[os.DirEntry[str]]:
    facts = os.lstat(folder)
    if facts.st_mode & 0o700 != 0o700:
        os.chmod(folder, 0o700)
    with os.scandir(folder) as entries:
        yield from entries
