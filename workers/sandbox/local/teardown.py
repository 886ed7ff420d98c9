"""Ends sandboxes from outside: what the process that had them can no longer do itself.

A sandbox is down when its holder has ended (which means all its descendants have), when nothing is left that the holder recorded or
that carries the sandbox's mark or is in its control groups, when nothing is mounted below its folder, and when its folders are gone.
Processes are found by identity
and mark, never by their names. With walls the keeper is among what the holder recorded, and a keeper that has ended is a PID namespace that
is empty: the kernel lets a PID 1 end last.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from workers.sandbox.errors import SandboxError, SandboxGone, SandboxLeak
from workers.sandbox.local.environment import MARK
from workers.sandbox.local.folder import NEW_PREFIX, TRASH_PREFIX, SandboxFolder, remove_tree, sandbox_paths
from workers.sandbox.local.groups import end_groups_of
from workers.sandbox.local.identity import (
    ProcessIdentity,
    identify,
    machine_boot,
    marked_processes,
    recorded_processes,
    send_signal,
    wait_ended,
)
from workers.sandbox.spec import SandboxOwner

HOLDER_GRACE_S = 3.0
"""A holder that is told to end needs milliseconds; one that hangs is killed after this."""
SURVIVOR_ROUNDS = 50
SURVIVOR_ROUND_S = 0.1
HALF_MADE_S = 60.0
"""A folder is given its name within milliseconds of being made: one that is nameless for this long was left by a crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What one sweep met."""

    live: int = 0
    removed: tuple[str, ...] = ()
    """Ids of sandboxes whose job is over."""
    failed: tuple[SandboxError, ...] = ()
    """Sandboxes that could not be ended; they are tried again by the next sweep."""


def owners(scratch_dir: Path) -> list[SandboxOwner]:
    """For whom the sandboxes below a scratch folder are: what to ask Redis about before a sweep. Blocks."""
    found: list[SandboxOwner] = []
    for path in sandbox_paths(scratch_dir):
        with contextlib.suppress(SandboxGone):
            found.append(SandboxFolder.open(path).record.owner)
    return found


async def sweep(scratch_dir: Path, is_live: Callable[[SandboxOwner], bool]) -> SweepReport:
    """Ends and removes every sandbox whose job is over, and what crashes left half made. Many may sweep at once.

    Args:
        is_live: whether the attempt that made a sandbox may still need it; called in a thread, must not block for long.
    """
    return await asyncio.to_thread(_sweep, scratch_dir, is_live)


async def tear_down(folder: SandboxFolder) -> None:
    """Ends one sandbox, whoever holds it, and removes it.

    Raises:
        SandboxLeak: processes of it could not be killed; its folder stays as the record of them.
    """
    await asyncio.to_thread(tear_down_now, folder)


def tear_down_now(folder: SandboxFolder) -> None:
    """As `tear_down`; blocks."""
    with contextlib.suppress(SandboxGone):
        folder.change_state(ended=True)
        _end_holder(folder)
    end_survivors(folder)
    end_groups_of(folder.path)
    check_unmounted(folder)
    folder.remove()


def check_unmounted(folder: SandboxFolder) -> None:
    """Walls mount where only they see it. Should a mount show here all the same, deleting the folder would delete what is mounted.

    Raises:
        SandboxLeak: something is mounted below the folder.
    """
    mounts = mounts_below(folder.path)
    if mounts:
        raise SandboxLeak(folder.sandbox_id, (), mounts)


def mounts_below(path: Path) -> tuple[str, ...]:
    """What is mounted at or below a path, as this process sees it."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except FileNotFoundError:  # no Linux
        return ()
    where = os.path.realpath(path).replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")
    points = [line.split(" ", 5)[4] for line in lines]
    return tuple(point for point in points if point == where or point.startswith(f"{where}/"))


def mounted_processes(folder: SandboxFolder) -> list[ProcessIdentity]:
    """Processes that live among the mounts of a sandbox: it is the name of the folder, which is nobody else's, that is mounted there.

    None of those whose mounts are ours: a mount that shows here says nothing about a process (`check_unmounted` says that it is there).
    """
    found: list[ProcessIdentity] = []
    word = folder.sandbox_id.encode()
    with contextlib.suppress(OSError):
        ours = os.readlink("/proc/self/ns/mnt")
        if word in Path("/proc/self/mountinfo").read_bytes():
            return []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):  # it has ended, or is another user's
                    place = f"/proc/{name}"
                    if os.stat(place).st_uid not in (os.geteuid(), 0) or os.readlink(f"{place}/ns/mnt") == ours:
                        continue
                    if word in Path(f"{place}/mountinfo").read_bytes() and (process := identify(int(name))):
                        found.append(process)
    return found


def end_survivors(folder: SandboxFolder) -> None:
    """Kills what a holder left when it was killed itself; returns when nothing is left. Blocks.

    Raises:
        SandboxLeak: something does not end.
    """
    left: list[ProcessIdentity] = []
    for _ in range(SURVIVOR_ROUNDS):
        left = survivors(folder)
        if not left:
            return
        for process in left:
            send_signal(process, signal.SIGKILL)
        wait_ended(left, SURVIVOR_ROUND_S)
    raise SandboxLeak(folder.sandbox_id, tuple(process.pid for process in left))


def survivors(folder: SandboxFolder) -> list[ProcessIdentity]:
    """What still runs of a sandbox whose holder has ended: by its mark, by its mounts, and by the holder's records. Blocks."""
    found = dict.fromkeys(marked_processes(MARK, folder.sandbox_id))
    found.update(dict.fromkeys(mounted_processes(folder)))
    if folder.record.machine_boot == machine_boot():
        with contextlib.suppress(OSError):
            lines = folder.children_file.read_text(encoding="ascii", errors="replace").splitlines()
            found.update(dict.fromkeys(recorded_processes(lines)))
    return list(found)


def _end_holder(folder: SandboxFolder) -> None:
    holder = folder.state().holder
    if holder is None or folder.record.machine_boot != machine_boot():
        return
    if send_signal(holder, signal.SIGTERM) and wait_ended([holder], HOLDER_GRACE_S):
        send_signal(holder, signal.SIGKILL)
        if wait_ended([holder], HOLDER_GRACE_S):
            raise SandboxLeak(folder.sandbox_id, (holder.pid,))


def _sweep(scratch_dir: Path, is_live: Callable[[SandboxOwner], bool]) -> SweepReport:
    live = 0
    removed: list[str] = []
    failed: list[SandboxError] = []
    for path in sandbox_paths(scratch_dir):
        try:
            folder = SandboxFolder.open(path)
            if is_live(folder.record.owner):
                live += 1
                continue
            tear_down_now(folder)
            removed.append(path.name)
        except SandboxError as error:
            failed.append(error)
    remove_nameless(scratch_dir)
    return SweepReport(live=live, removed=tuple(removed), failed=tuple(failed))


def remove_nameless(scratch_dir: Path, *, older_s: float = HALF_MADE_S) -> None:
    """Deletes what has lost its name, and what has had none for `older_s` seconds. Blocks."""
    for path in scratch_dir.glob(".*"):
        with contextlib.suppress(FileNotFoundError):
            old = time.time() - path.lstat().st_mtime > older_s
            if path.name.startswith(TRASH_PREFIX) or (path.name.startswith(NEW_PREFIX) and old):
                remove_tree(path)
