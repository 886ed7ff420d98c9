"""Folders on this node as entries: a plain folder that becomes an image, and the changes that a build left in an overlay."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from workers.sandbox.images.entries import CHUNK_BYTES, Entries, Entry, EntryKind
from workers.sandbox.images.trees import walk


def entries_of_folder(root: str | os.PathLike[str]) -> Entries:
    """Everything below a folder. A file with several names is one file again.

    Raises:
        OSError: something in it cannot be read.
    """
    for path, full, facts in _walk_once(root):
        if isinstance(facts, str):
            yield Entry(name=path, kind="hardlink", link=facts)
        else:
            yield _entry(path, full, facts)


def entries_of_file(path: str | os.PathLike[str], name: str) -> Entries:
    """One file, followed where it is a link, under another name."""
    full = os.path.realpath(path)
    yield _entry(name, full, os.stat(full))


def entries_of_overlay(upper: str | os.PathLike[str]) -> Entries:
    """What an overlay's upper folder changes: a device 0:0 stands for what was removed, an attribute for a folder that was replaced."""
    for path, full, facts in _walk_once(upper):
        if isinstance(facts, str):
            yield Entry(name=path, kind="hardlink", link=facts)
        elif (stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0) or (stat.S_ISREG(facts.st_mode) and _has(full, "whiteout")):
            yield Entry(name=path, kind="whiteout")
        else:
            if stat.S_ISDIR(facts.st_mode) and _has(full, "opaque"):
                yield Entry(name=path, kind="opaque")
            yield _entry(path, full, facts)


def _walk_once(root: str | os.PathLike[str]) -> Iterator[tuple[str, str, os.stat_result | str]]:
    """As `walk`, with the first name of a file in place of its facts where it is met again."""
    names: dict[tuple[int, int], str] = {}
    for path, full, facts in walk(root):
        if facts.st_nlink > 1 and stat.S_ISREG(facts.st_mode):
            first = names.setdefault((facts.st_dev, facts.st_ino), path)
            if first != path:
                yield path, full, first
                continue
        yield path, full, facts


def _entry(path: str, full: str, facts: os.stat_result) -> Entry:
    kind: EntryKind = "special"
    link = ""
    if stat.S_ISREG(facts.st_mode):
        return Entry(
            name=path,
            kind="file",
            mode=stat.S_IMODE(facts.st_mode),
            size=facts.st_size,
            mtime_s=facts.st_mtime,
            content=_chunks(full),
        )
    if stat.S_ISDIR(facts.st_mode):
        kind = "folder"
    elif stat.S_ISLNK(facts.st_mode):
        kind, link = "symlink", os.readlink(full)
    return Entry(name=path, kind=kind, mode=stat.S_IMODE(facts.st_mode), mtime_s=facts.st_mtime, link=link)


def _chunks(full: str) -> Iterator[bytes]:
    descriptor = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        while part := file.read(CHUNK_BYTES):
            yield part


def _has(full: str, what: str) -> bool:
    """Whether an overlay has marked an entry; `user.` where an ordinary user mounted it, `trusted.` where root did."""
    for space in ("user", "trusted"):
        with contextlib.suppress(OSError):
            return os.getxattr(full, f"{space}.overlay.{what}", follow_symlinks=False) in (b"y", b"")  # type: ignore[attr-defined,unused-ignore]  # Linux
    return False
