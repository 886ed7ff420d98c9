"""The job `leftovers`: what dead processes left below this machine's folders.

    SCRATCH/sandboxes/*    sandboxes of a service that is gone; under the two locks that a service holds while it lives, and only older
    ones: what a service that comes now finds, it removes itself
    RUN/*                  sockets that nobody listens at
    RUN/nodes/*            of launchers that are dead; under the lock of each (ops/node/sweeping.py)
    STATE/logs/**          logs that nothing was written to for `logs_keep_s`
    SCRATCH/logs/*/**      the same, of nodes that do not run
    EXPORT_DIR/*/*/.part-* parts that an export did not finish, after a day

Only files of this user are touched, and only what has such a place and name. Links are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from ops.export.parts import UNFINISHED
from ops.housekeeping.places import Found, Workplace
from ops.node.files import FOLDER, notes_here
from ops.node.sweeping import sweep_dead
from pipeline.folders import Folders
from workers.sandbox.local.folder import sandbox_paths
from workers.sandbox.service.janitor import tidy
from workers.sandbox.service.serving import AlreadyServed, lock_folder
from workers.sandbox.service.settings import SANDBOXES, SandboxSettings

YOUNG_S = 600.0
"""What is younger may belong to a process that just starts."""
UNFINISHED_S = 86_400.0
LOG_NAMES = ("*.log", "*.log.*")


async def remove(place: Workplace) -> Found:
    """Removes it all; blocks in a thread."""
    return await asyncio.to_thread(_remove, place)


def _remove(place: Workplace) -> Found:
    folders, settings = Folders.from_environment(), place.housekeeping
    removed: dict[str, int] = {
        "sandboxes": _sandboxes(SandboxSettings.load(), dry_run=place.dry_run),
        "node_files": sweep_dead(folders.run / FOLDER, older_s=YOUNG_S, dry_run=place.dry_run),
    }
    found = {
        "sockets": _dead_sockets(folders.run),
        "logs": [*_older(folders.state / "logs", LOG_NAMES, settings.logs_keep_s), *_logs_of_nodes(folders, settings.logs_keep_s)],
        "unfinished_parts": _older(settings.export_dir, (f"{UNFINISHED}*",), UNFINISHED_S),
    }
    for what, paths in found.items():
        removed[what] = 0
        for path in paths:
            if not place.dry_run:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
            removed[what] += 1
    return {"removed": sum(removed.values()), **removed}


def _sandboxes(settings: SandboxSettings, *, dry_run: bool) -> int:
    scratch, run = settings.scratch / SANDBOXES, settings.run
    old = {path.name for path in sandbox_paths(scratch) if _age_s(path) >= YOUNG_S} if scratch.is_dir() else set[str]()
    if not old or not run.is_dir():
        return 0
    with ExitStack() as stack:
        try:
            for folder in (settings.run, settings.scratch):
                stack.enter_context(contextlib.closing(lock_folder(folder)))
        except AlreadyServed:
            return 0  # a service lives: its janitor does this
        if dry_run:
            return len(old)
        return len(tidy(scratch, run, is_ours_now=lambda sandbox: sandbox not in old, everything=True).ended)


def _dead_sockets(run: Path) -> Iterator[Path]:
    for path in _entries(run):
        if stat.S_ISSOCK(path.lstat().st_mode) and _is_ours(path) and _age_s(path) >= YOUNG_S and _nobody_listens(path):
            yield path


def _nobody_listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError as error:
            return error.errno == errno.ECONNREFUSED
    return False


def _logs_of_nodes(folders: Folders, age_s: float) -> Iterator[Path]:
    """Of those that do not run: what a process prints beside the log may be silent for long."""
    running = {Path(note.logs) for _, note in notes_here(folders.run / FOLDER) if note.is_up}
    for folder in _entries(folders.scratch / "logs"):
        if folder not in running:
            yield from _older(folder, LOG_NAMES, age_s)


def _older(folder: Path | None, names: tuple[str, ...], age_s: float) -> Iterator[Path]:
    """Files of some names below a folder, of this user, that nothing was written to for so long."""
    for name in names if folder is not None and folder.is_dir() else ():
        assert folder is not None
        for path in folder.rglob(name):
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(path.lstat().st_mode) and _is_ours(path) and _age_s(path) >= age_s:
                    yield path


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _is_ours(path: Path) -> bool:
    return path.lstat().st_uid == os.getuid()


def _age_s(path: Path) -> float:
    return time.time() - path.lstat().st_mtime


__all__ = ["remove"]
