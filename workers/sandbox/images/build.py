"""Builds an image from a definition: level on level, each an image of its own, begun at the most exact one that is there.

A level is made like any image of the node's store, so one process makes it and others wait, and a killed build leaves what was complete:
the next begins there. Its tree begins as the one below it, file for file the same by hard links: nothing in a store is written in place.
What a script changes is caught in the upper folder of its sandbox's overlay and applied as a layer, when the script has ended well.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipeline.errors import InvalidRequest
from pipeline.failpoints import failpoint
from workers.sandbox.errors import ImageError, ImageMissing
from workers.sandbox.images.definition import Definition, Level, LevelName
from workers.sandbox.images.entries import Entries, Entry
from workers.sandbox.images.folder_entries import entries_of_file, entries_of_folder, entries_of_overlay
from workers.sandbox.images.lease import ImageLease
from workers.sandbox.images.locks import Say, say_nothing
from workers.sandbox.images.node_store import Fill
from workers.sandbox.images.records import Contents, NameRecord
from workers.sandbox.images.store import ImageStore
from workers.sandbox.images.tree_writer import TreeWriter, Written
from workers.sandbox.images.trees import walk

MOUNT_POINTS = frozenset(
    {"dev", "proc", "sys", "run", "run/rollstream", "run/rollstream/given", "run/rollstream/sockets", "tmp", "var", "var/tmp", "workspace"}
)
"""Folders that every sandbox has whatever its image; that they are in an upper folder is none of a script's changes."""


class Scripts(Protocol):
    """Runs a build's scripts, each in a sandbox of its own."""

    def run(self, root: Path, script: str, *, env: Mapping[str, str], network: bool, say: Say) -> AbstractContextManager[Path]:
        """Runs a script to its end over a tree, which it does not change; inside the block the upper folder has what it did.

        Raises:
            ImageError: it failed; with the last it printed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A finished build."""

    record: NameRecord
    began_from: str
    """The level that was there, `base` when none was."""


def build(
    store: ImageStore,
    definition: Definition,
    scripts: Scripts,
    *,
    name: str = "",
    refresh: bool = False,
    share: bool = False,
    say: Say = say_nothing,
) -> Built:
    """Builds a definition and records its name.

    Args:
        name: instead of the definition's.
        refresh: make all levels again; what is there is replaced level by level, each when its new one is complete.
        share: also pack it into a SIF, for other nodes.

    Raises:
        ImageMissing: the base is not here.
        ImageError: a script failed, or the disk is full.
    """
    name = name or definition.name
    base = store.shared.find(definition.base)
    if base is None:
        raise ImageMissing(definition.base, f"the base of {definition.path.name} is not in the image store")
    keys = definition.keys(base.digest)
    digest = keys["source"]
    if refresh:
        used = {image.record.digest for image in store.node.images() if image.is_leased}
        for level in definition.levels:
            if keys[level.name] in used:
                raise ImageError(name, f"its level {level.name} is in use and cannot be made again now")
        lease, began_from, levels = store.lease(definition.base), "base", definition.levels
    else:
        lease, began_from, levels = _begin(store, definition, name, keys)
    try:
        for level in levels:
            if level.name != "source" and not level.run and not level.copy:
                continue
            say(f"makes level {level.name}")
            fill = _fill_of(store, definition, level, lease, scripts, name, say)
            store.make(name, keys[level.name], "build", str(definition.path), fill, say, again=refresh)
            lease.close()
            lease = _lease_of(store, name, keys[level.name])
        contents = Contents(env=lease.env, workdir=lease.workdir)
    finally:
        lease.close()
    tree = store.node.find(digest)
    size = tree.size_bytes if tree is not None else 0
    record = NameRecord.new(name, digest=digest, kind="build", source=str(definition.path), contents=contents, size_bytes=size)
    if share:
        record = store.share(record, say)
    store.shared.record(record)
    return Built(record=record, began_from=began_from)


def _begin(
    store: ImageStore, definition: Definition, name: str, keys: Mapping[LevelName, str]
) -> tuple[ImageLease, str, tuple[Level, ...]]:
    """The most exact level that is there, and those that are still to be made."""
    for place in range(len(definition.levels), 0, -1):
        level = definition.levels[place - 1]
        lease = store.node.lease(name, keys[level.name])
        if lease is not None:
            return lease, level.name, definition.levels[place:]
    return store.lease(definition.base), "base", definition.levels


def _lease_of(store: ImageStore, name: str, digest: str) -> ImageLease:
    lease = store.node.lease(name, digest)
    if lease is None:
        raise ImageError(name, "a level was removed before the next could be made of it: the budget is too small for this build")
    return lease


def _fill_of(store: ImageStore, definition: Definition, level: Level, below: ImageLease, scripts: Scripts, name: str, say: Say) -> Fill:
    def fill(root: Path) -> tuple[Contents, Written]:
        link_tree(below.root, root)
        writer = TreeWriter(root, store.bounds)
        for source, target in level.copy.items():
            writer.apply(_copied(definition.file_of(source), target))
        failpoint("image_copied")
        if level.run:
            say(f"runs the script of level {level.name}")
            env = {**below.env, **definition.env}
            with scripts.run(root, level.run, env=env, network=definition.network, say=say) as upper:
                writer.apply(_changes(upper))
        is_last = level.name == "source"
        env = {**below.env, **definition.env} if is_last else dict(below.env)
        return Contents(env=env, workdir=definition.workdir if is_last and definition.workdir else below.workdir), writer.written

    return fill


def _copied(path: Path, target: str) -> Entries:
    """The entries of one copy."""
    if path.is_dir():
        yield Entry(name=target, kind="folder", mode=stat.S_IMODE(path.stat().st_mode))
        for entry in entries_of_folder(path):
            link = f"{target}/{entry.link}" if entry.kind == "hardlink" else entry.link
            yield Entry(
                name=f"{target}/{entry.name}",
                kind=entry.kind,
                mode=entry.mode,
                size=entry.size,
                mtime_s=entry.mtime_s,
                link=link,
                content=entry.content,
            )
    elif path.is_file():
        yield from entries_of_file(path, target)
    else:
        raise InvalidRequest(f"{path} is no file and no folder", field="copy")


def _changes(upper: Path) -> Iterator[Entry]:
    for entry in entries_of_overlay(upper):
        if not (entry.name in MOUNT_POINTS and entry.kind == "folder"):
            yield entry


def link_tree(source: Path, target: Path) -> None:
    """Makes a tree that has the files of another by hard links: its folders and links are its own."""
    os.chmod(target, stat.S_IMODE(source.stat().st_mode))
    for path, full, facts in walk(source):
        new = f"{target}/{path}"
        if stat.S_ISDIR(facts.st_mode):
            os.mkdir(new)
            os.chmod(new, stat.S_IMODE(facts.st_mode))
        elif stat.S_ISLNK(facts.st_mode):
            os.symlink(os.readlink(full), new)
        else:
            try:
                os.link(full, new, follow_symlinks=False)
            except OSError as error:
                if error.errno != errno.EMLINK:
                    raise
                shutil.copy2(full, new, follow_symlinks=False)
