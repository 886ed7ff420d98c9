"""Applies entries to a tree, and lets none of them out of it.

1. Nothing outside the root is made, changed, linked to or read. A path is walked part by part; a link on the way is followed as it will be
   inside a sandbox, where the root is `/` and `..` of it is itself.
2. Nothing is written in place: what stands where a new entry goes is removed first. So files may be shared with another tree by hard links.
3. Every folder can be entered and changed, every file read, by its owner; set-user and set-group bits are dropped; owners are not kept.
4. Whiteouts remove what earlier layers put there, never what their own layer did, in whatever order the two come.
5. What it may take of the disk is bounded before it is written. A bound that is passed ends it; the caller throws the tree away.

Nobody else changes the tree meanwhile: that is the caller's lock.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from workers.sandbox.images.entries import BadArchive, Entry
from workers.sandbox.images.trees import remove_tree

MAX_NAME_BYTES = 255
MAX_PATH_BYTES = 3072
"""Room below PATH_MAX (4096) for the folder that the tree stands in."""
MAX_DEPTH = 200
MAX_LINKS = 40
"""Links on the way to one path, as in the kernel."""
BLOCK_BYTES = 4096
"""What the smallest file or folder takes of a disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How large an image may be."""

    max_bytes: int
    """Sum over the entries of all its layers, each rounded up to whole blocks."""
    max_entries: int


@dataclass(slots=True, kw_only=True)
class Written:
    """What was made of the entries so far."""

    n_bytes: int = 0
    entries: int = 0
    special_left_out: int = 0
    """Devices, pipes and sockets."""
    bits_dropped: int = 0
    """Entries that had set-user or set-group bits."""


class TreeWriter:
    """One tree being made.

    Args:
        root: an existing folder.
    """

    def __init__(self, root: str | os.PathLike[str], bounds: Bounds) -> None:
        self._root = os.fspath(root)
        self._bounds = bounds
        self.written = Written()
        self._folders: dict[str, str] = {}
        """Written path of a folder -> its real path, both relative to the root; dropped whenever something is removed."""
        self._added: set[str] = set()
        """Real paths that the present layer made."""

    def apply(self, layer: Iterable[Entry]) -> None:
        """Applies one layer.

        Raises:
            BadArchive: an entry that no image may have, or a bound.
        """
        self._added.clear()
        self._folders.clear()
        for entry in layer:
            try:
                self._put(entry)
            except (ValueError, RecursionError) as error:  # a NUL in a name
                raise BadArchive(f"{_shown(entry.name)}: {error}") from error

    # -- one entry --------------------------------------------------------------------------------------------------------------------

    def _put(self, entry: Entry) -> None:
        parts = _parts(entry.name)
        self._charge(entry)
        if entry.kind == "opaque":
            folder = self._folder(parts, make=False)
            if folder is not None:
                self._remove_earlier(folder, keep=True)
            return
        if not parts:
            if entry.kind != "folder":
                raise BadArchive(f"{_shown(entry.name)}: only a folder can be the root")
            return
        parent = self._folder(parts[:-1], make=entry.kind not in ("whiteout", "special"))
        if parent is None:
            return
        path = f"{parent}/{parts[-1]}" if parent else parts[-1]
        match entry.kind:
            case "whiteout":
                self._remove_earlier(path, keep=False)
            case "folder":
                self._put_folder(path, entry)
            case "file":
                self._put_file(path, entry)
            case "symlink":
                self._put_link(path, entry)
            case "hardlink":
                self._put_hard_link(path, entry)
            case _:  # counted when charged
                pass

    def _put_folder(self, path: str, entry: Entry) -> None:
        full = self._full(path)
        facts = _facts(full)
        if facts is None or not stat.S_ISDIR(facts.st_mode):
            self._clear(path, facts)
            os.mkdir(full, 0o700)
        os.chmod(full, (entry.mode & 0o1777) | 0o700)
        self._added.add(path)

    def _put_file(self, path: str, entry: Entry) -> None:
        full = self._full(path)
        self._clear(path, _facts(full))
        descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            for chunk in entry.content:
                view = memoryview(chunk)
                while view:
                    view = view[os.write(descriptor, view) :]
            os.fchmod(descriptor, (entry.mode & 0o777) | 0o400)
            os.utime(descriptor, (entry.mtime_s, entry.mtime_s))
        finally:
            os.close(descriptor)
        self._added.add(path)

    def _put_link(self, path: str, entry: Entry) -> None:
        """Kept as it is written: inside the sandbox it leads nowhere but into the image."""
        if not entry.link or len(os.fsencode(entry.link)) > MAX_PATH_BYTES:
            raise BadArchive(f"{_shown(entry.name)}: a link with a target of {len(entry.link)} characters")
        full = self._full(path)
        self._clear(path, _facts(full))
        os.symlink(entry.link, full)
        self._added.add(path)

    def _put_hard_link(self, path: str, entry: Entry) -> None:
        parts = _parts(entry.link)
        parent = self._folder(parts[:-1], make=False) if parts else None
        target = "" if parent is None else f"{parent}/{parts[-1]}" if parent else parts[-1]
        facts = _facts(self._full(target)) if target else None
        if facts is None or stat.S_ISDIR(facts.st_mode):
            raise BadArchive(f"{_shown(entry.name)}: a hard link to {_shown(entry.link)}, which is no file of the image")
        if target != path:
            full = self._full(path)
            self._clear(path, _facts(full))
            if _facts(self._full(target)) is None:
                raise BadArchive(f"{_shown(entry.name)}: a hard link to a file in the folder that it replaces")
            try:
                os.link(self._full(target), full, follow_symlinks=False)
            except OSError as error:
                if error.errno != errno.EMLINK:
                    raise
                shutil.copy2(self._full(target), full, follow_symlinks=False)
        self._added.add(path)

    # -- paths ------------------------------------------------------------------------------------------------------------------------

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _folder(self, parts: list[str], *, make: bool) -> str | None:
        """The real path of a folder, made when it is missing; None when it is missing and not to be made."""
        written = "/".join(parts)
        known = self._folders.get(written)
        if known is not None:
            return known
        here, hops = "", 0
        waiting = parts[::-1]
        while waiting:
            part = waiting.pop()
            if part in ("", "."):
                continue
            if part == "..":
                here = here.rpartition("/")[0]
                continue
            there = f"{here}/{part}" if here else part
            facts = _facts(self._full(there))
            if facts is None:
                if not make:
                    return None
                self._spend(1, BLOCK_BYTES)
                _check_path(there)
                os.mkdir(self._full(there), 0o755)
                self._added.add(there)
                here = there
            elif stat.S_ISDIR(facts.st_mode):
                here = there
            elif stat.S_ISLNK(facts.st_mode):
                hops += 1
                if hops > MAX_LINKS:
                    raise BadArchive(f"{_shown(written)}: more than {MAX_LINKS} links on the way")
                target = os.readlink(self._full(there))
                here = "" if target.startswith("/") else here
                waiting.extend(target.split("/")[::-1])
            elif make:
                raise BadArchive(f"{_shown(written)}: {_shown(there)} on the way is no folder")
            else:
                return None
        self._folders[written] = here
        return here

    # -- removing ---------------------------------------------------------------------------------------------------------------------

    def _clear(self, path: str, facts: os.stat_result | None) -> None:
        """Removes what stands where an entry goes."""
        if facts is None:
            return
        if stat.S_ISDIR(facts.st_mode):
            remove_tree(self._full(path))
        else:
            os.unlink(self._full(path))
        self._folders.clear()

    def _remove_earlier(self, path: str, *, keep: bool) -> None:
        """Removes what earlier layers put at a path and below it."""
        facts = _facts(self._full(path))
        if facts is None:
            return
        self._folders.clear()
        if not stat.S_ISDIR(facts.st_mode):
            if path not in self._added:
                os.unlink(self._full(path))
            return
        folders, waiting = [], [path]
        while waiting:
            folder = waiting.pop()
            folders.append(folder)
            with os.scandir(self._full(folder)) as entries:
                for entry in entries:
                    inner = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(inner)
                    elif inner not in self._added:
                        os.unlink(entry.path)
        for folder in reversed(folders):
            if folder not in self._added and not (keep and folder == path) and not os.listdir(self._full(folder)):
                os.rmdir(self._full(folder))

    # -- bounds -----------------------------------------------------------------------------------------------------------------------

    def _charge(self, entry: Entry) -> None:
        if entry.kind == "special":
            self.written.special_left_out += 1
        if entry.mode & 0o6000 and entry.kind in ("file", "folder"):
            self.written.bits_dropped += 1
        blocks = -(-entry.size // BLOCK_BYTES) * BLOCK_BYTES
        self._spend(1, BLOCK_BYTES if entry.kind in ("folder", "symlink") else blocks)

    def _spend(self, entries: int, n_bytes: int) -> None:
        self.written.entries += entries
        self.written.n_bytes += n_bytes
        if self.written.entries > self._bounds.max_entries:
            raise BadArchive(f"more than {self._bounds.max_entries:,} entries: raise ROLLSTREAM_IMAGE_MAX_ENTRIES if it is meant so")
        if self.written.n_bytes > self._bounds.max_bytes:
            limit_gib = self._bounds.max_bytes / 1024**3
            raise BadArchive(f"more than {limit_gib:,.3g} GiB unpacked: raise ROLLSTREAM_IMAGE_MAX_IMAGE_GIB if it is meant so")


def _parts(name: str) -> list[str]:
    """The parts of a written path; absolute ones begin at the root of the image."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadArchive(f"{_shown(name)}: leads out of the image")
    _check_path("/".join(parts))
    return parts


def _check_path(path: str) -> None:
    raw = os.fsencode(path)
    if len(raw) > MAX_PATH_BYTES or raw.count(b"/") >= MAX_DEPTH or any(len(part) > MAX_NAME_BYTES for part in raw.split(b"/")):
        raise BadArchive(f"{_shown(path)}: a path that is too long or too deep")


def _facts(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _shown(name: str) -> str:
    return ascii(name if len(name) <= 120 else name[:80] + "…" + name[-30:])
