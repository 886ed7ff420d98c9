"""What people are shown of a node's sandboxes: read from their folders and from what is attached, never from what runs inside them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from workers.sandbox.errors import SandboxGone
from workers.sandbox.local.attempts import POOL_JOB
from workers.sandbox.local.folder import FolderState, SandboxFolder, sandbox_paths
from workers.sandbox.local.identity import is_running
from workers.sandbox.use import SandboxUse

if TYPE_CHECKING:
    from workers.sandbox.service.node import Attachment


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxView:
    """One sandbox as it stands."""

    sandbox_id: str
    job_id: str
    attempt: int
    """That made it."""
    seen_attempt: int
    """The latest that was here."""
    state: str
    """`attached`, `parked` (it waits for its next stage), `warm` (made ahead, for nobody yet), `snapshot` (files kept to begin from), or
    `ending`."""
    backend: str
    isolation: str
    image: str
    """Empty = the node's own files."""
    age_s: float
    worker_pid: int
    """Process that it is attached to; 0 = none, or unknown."""
    worker_boot: str
    processes: tuple[str, ...] = ()
    """`PID NAME` of what runs in it now."""
    limits: dict[str, object] = field(default_factory=dict)
    """As it was asked for."""
    use: SandboxUse | None = None
    """What is used, what enforces each limit here, and what was ended in it. None while nobody is attached."""


def views(
    scratch: Path,
    attached: Mapping[str, Attachment],
    uses: Mapping[str, SandboxUse],
    *,
    prefix: str = "",
    with_processes: bool = False,
) -> list[SandboxView]:
    """All sandboxes below a scratch folder whose id begins with `prefix`, oldest first. Blocks.

    Args:
        uses: of those that are attached.
    """
    found = []
    for path in sandbox_paths(scratch, prefix):
        with contextlib.suppress(SandboxGone):
            view = _view(SandboxFolder.open(path), attached.get(path.name), with_processes)
            found.append(replace(view, use=uses.get(path.name)))
    return sorted(found, key=lambda view: -view.age_s)


def _view(folder: SandboxFolder, attachment: Attachment | None, with_processes: bool) -> SandboxView:
    record, state = folder.record, folder.state()
    try:
        spec = json.loads((folder.path / "spec.json").read_bytes())
    except OSError:
        raise SandboxGone(folder.sandbox_id, "its folder was removed") from None
    return SandboxView(
        sandbox_id=folder.sandbox_id,
        job_id=record.job_id,
        attempt=record.attempt,
        seen_attempt=state.seen_attempt,
        state=_state(record.job_id, state, attachment),
        backend=record.backend,
        isolation=str(spec.get("isolation", "")),
        image=str(spec.get("image", "")),
        age_s=max(0.0, time.time() - record.created_s),
        worker_pid=attachment.worker.pid if attachment is not None else 0,
        worker_boot=attachment.worker.boot if attachment is not None else "",
        processes=tuple(_processes(state.holder.pid)) if with_processes and state.holder and is_running(state.holder) else (),
        limits=dict(spec.get("limits", {})),
    )


def _state(job_id: str, state: FolderState, attachment: Attachment | None) -> str:
    if attachment is not None:
        return "attached"
    if state.ended:
        return "ending"
    if job_id == POOL_JOB:
        return "warm"
    if state.is_snapshot:
        return "snapshot"
    return "ending" if state.changed_by else "parked"


def _processes(holder_pid: int) -> list[str]:
    """What runs below a holder; what ends meanwhile is left out."""
    found = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(holder_pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {process.name()}")
    return found
