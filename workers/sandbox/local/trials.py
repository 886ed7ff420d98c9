"""Folders of trials: what a probe of a backend makes on a node, and who removes it when the probe was killed.

    SCRATCH/.pWORD/          a probe's own scratch folder
                   owner     PID STARTED of the process that tries; written before anything else is there
    SCRATCH/.probe-WORD/     what a program was tried with, before there is a sandbox
    RUN/pWORD/               its sockets; named first by the folder in scratch, and removed before it

A trial whose process has ended is nobody's. One that does not say whose it is may be in the making, for some minutes at most.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from workers.sandbox.errors import SandboxError
from workers.sandbox.local.folder import SandboxFolder, remove_tree, sandbox_paths
from workers.sandbox.local.identity import ProcessIdentity, identify, is_running
from workers.sandbox.local.teardown import tear_down_now

log = structlog.get_logger(__name__)

WORD = re.compile(r"\.?(p[0-9a-f]{4})")
TRIED = re.compile(r"\.probe-\w+")
OWNER = "owner"
TRIAL_S = 600.0
"""A trial takes seconds: older ones that say nothing of their owner were left behind."""


@contextmanager
def trial_folders(scratch: Path, run: Path) -> Iterator[tuple[Path, Path]]:
    """Names of a scratch and of a run folder for one trial. Blocks."""
    word = f"p{secrets.token_hex(2)}"  # short: sockets live below it
    folders = scratch / f".{word}", run / word
    folders[0].mkdir(mode=0o700)
    me = identify(os.getpid())
    assert me is not None
    draft = folders[0] / f"{OWNER}.new"
    draft.write_text(f"{me.pid} {me.started}\n", encoding="ascii")
    draft.rename(folders[0] / OWNER)
    try:
        yield folders
    finally:
        for folder in reversed(folders):
            remove_tree(folder)


def remove_left_trials(scratch: Path, run: Path) -> int:
    """Ends and removes what was left of trials; returns how many folders those were. Blocks."""
    removed = 0
    for path in (*run.iterdir(), *scratch.iterdir()):
        with contextlib.suppress(FileNotFoundError):
            word = WORD.fullmatch(path.name)
            if path.is_dir() and (word or TRIED.fullmatch(path.name)) and _is_left(path, scratch / f".{word[1]}" if word else path):
                removed += _remove(path)
    return removed


def _is_left(path: Path, owned: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        pid, started = map(int, (owned / OWNER).read_text(encoding="ascii").split())
        return not is_running(ProcessIdentity(pid, started))
    return time.time() - path.stat().st_mtime > TRIAL_S


def _remove(path: Path) -> bool:
    for sandbox in sandbox_paths(path):
        try:
            tear_down_now(SandboxFolder.open(sandbox))
        except SandboxError as error:
            log.warning("trial_not_removed", sandbox=sandbox.name, error=str(error))
    if sandbox_paths(path):
        return False
    remove_tree(path)
    return True
