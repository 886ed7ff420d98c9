"""What lies about below a service's folders and nobody can need any more. Runs at start and each period; every step may be repeated.

    SCRATCH/ID             its sandbox was ended or lost, and its lease is free; its record is damaged, or of another boot of the machine
    SCRATCH/.new- .trash-  half made, half removed
    RUN/ID                 sockets of a sandbox whose folder is gone: a folder has its name before it has sockets, and loses it before them
    SCRATCH/../.pWORD, RUN/pWORD   what a probe of a backend left that was killed (`local/trials.py`)

1. Only what is ours is touched: below the folders that this service has locked, with names that only we give. Processes are found by the
   records of a sandbox and by its mark, never by their names.
2. A sandbox that this process holds, makes or ends is left alone, and so is one that waits parked: whether its job still needs it is
   for the node agent to say.
3. What cannot be ended is reported, and tried again by the next round.
4. What dead extractions left of images is not looked for here: the image store removes it, in the same round (`NodeSandboxes.tidy`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from workers.sandbox.errors import SandboxError, SandboxGone
from workers.sandbox.local.folder import SANDBOX_ID, SandboxFolder, remove_tree, sandbox_paths
from workers.sandbox.local.identity import machine_boot
from workers.sandbox.local.teardown import HALF_MADE_S, remove_nameless, tear_down_now
from workers.sandbox.local.trials import remove_left_trials


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidied:
    """What one round did."""

    ended: tuple[str, ...] = ()
    """Sandboxes of which nothing is left now."""
    failed: dict[str, str]
    """By sandbox: why its end is not proven."""
    folders: int = 0
    """Other folders that were removed."""


def tidy(scratch: Path, run: Path, *, is_ours_now: Callable[[str], bool], again: Iterable[str] = (), everything: bool = False) -> Tidied:
    """One round. Blocks.

    Args:
        scratch, run: folders of sandboxes and of their sockets.
        is_ours_now: whether this process holds a sandbox, makes it or ends it.
        again: sandboxes whose end was not proven before.
        everything: at start: whatever is there was left by an earlier service.
    """
    ended: list[str] = []
    failed: dict[str, str] = {}
    again = frozenset(again)
    for sandbox_id in dict.fromkeys((*sorted(again), *(path.name for path in sandbox_paths(scratch)))):
        try:
            if sandbox_id not in again and is_ours_now(sandbox_id):
                continue
            folder = _open(scratch / sandbox_id, run)
            if folder is None:
                ended.append(sandbox_id)
            elif everything or sandbox_id in again or folder.record.machine_boot != machine_boot() or folder.is_over():
                tear_down_now(folder)
                ended.append(sandbox_id)
        except SandboxGone:  # removed just now
            continue
        except (SandboxError, OSError) as error:
            failed[sandbox_id] = str(error)
    remove_nameless(scratch, older_s=0.0 if everything else HALF_MADE_S)
    return Tidied(ended=tuple(ended), failed=failed, folders=_remove_sockets(scratch, run) + remove_left_trials(scratch.parent, run))


def _open(path: Path, run: Path) -> SandboxFolder | None:
    """The folder of a sandbox, also when its record cannot be read (a machine that lost its power writes empty files); None = gone."""
    try:
        return SandboxFolder.open(path)
    except SandboxGone:
        return SandboxFolder.without_record(path, run) if path.is_dir() else None


def _remove_sockets(scratch: Path, run: Path) -> int:
    removed = 0
    for path in run.iterdir():
        if SANDBOX_ID.fullmatch(path.name) and not (scratch / path.name).exists():
            remove_tree(path)
            removed += 1
    return removed
