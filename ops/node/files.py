"""What a launcher keeps on its machine: the lock of its node's name, and notes of what it started, for whoever comes after its death.

    RUN/nodes/<namespace>.<node>.lock    flock of the launcher; holds its boot
    RUN/nodes/<namespace>.<node>.measures/  what its processes count (ops/metrics/node.py)
    RUN/nodes/<namespace>.<node>.json    launcher and children: number, start time; boot of the machine
    RUN/nodes/<namespace>.<node>.password    that of Redis, when the launcher was given it in an address

Invariants:

- The lock ends with its process. Who has it knows that every earlier launcher of this name on this machine is dead.
- Only processes that a note names, with their start time and this boot of the machine, are ended: a number alone may be another's by now.
- A note is replaced whole. One that cannot be read counts as none.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson
import structlog

from pipeline.embedded.locks import FileLock, Mode
from pipeline.errors import RollstreamError
from pipeline.folders import Folders, make_private_folder
from workers.sandbox.local.identity import ProcessIdentity, identify, is_running, machine_boot, send_signal, wait_ended

log = structlog.get_logger(__name__)

FOLDER = "nodes"
LEAVE_S = 5.0
"""Children of a dead launcher hand back as soon as they notice; this is for those that do not."""

SWEEP_S = 1.0
"""Longer than a sweep has the lock of a name."""


class NodeTaken(RollstreamError):
    """Another launcher has the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNote:
    """A launcher, and what it has started."""

    node: str
    namespace: str
    machine: str
    """Boot of it."""
    launcher: ProcessIdentity
    children: Mapping[str, ProcessIdentity]
    """By name."""
    logs: str
    grace_s: float

    @property
    def is_up(self) -> bool:
        """Whether the launcher runs."""
        return self.machine == machine_boot() and is_running(self.launcher)

    @property
    def left(self) -> list[ProcessIdentity]:
        """Those of its children that run."""
        return [child for child in self.children.values() if self.machine == machine_boot() and is_running(child)]


class NodeFiles:
    """The files of one name; a context manager that has its lock.

    Args:
        folder: `RUN/nodes`.
        boot: of this launcher.
    """

    def __init__(self, folder: Path, namespace: str, node: str, boot: str) -> None:
        self._folder, self._namespace, self._node, self._boot = folder, namespace, node, boot
        self._lock: FileLock | None = None
        self.dead_boot = ""
        """Of the launcher that had the name here before us."""

    def __enter__(self) -> Self:
        """Takes the name on this machine.

        Raises:
            NodeTaken: another launcher has it.
            FolderError: the folder is not ours.
        """
        make_private_folder(self._folder.parent)
        make_private_folder(self._folder)
        path = self._path("lock")
        lock = FileLock(path)
        while (is_taken := lock.lock_within(Mode.EXCLUSIVE, SWEEP_S)) and not is_at(lock, path):
            lock.close()  # a sweep has removed the file meanwhile (`sweeping.py`)
            lock = FileLock(path)
        if not is_taken:
            lock.close()
            note = read_note(self._path("json"))
            who = f"process {note.launcher.pid}" if note is not None and note.is_up else "another process"
            raise NodeTaken(
                f"{who} of this machine is the launcher of node {self._node}: `rollstream node show {self._node}` looks at it, "
                "--node takes another"
            )
        self._lock = lock
        self.dead_boot = path.read_text(encoding="ascii", errors="replace").strip()
        path.write_text(self._boot, encoding="ascii")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._lock is not None
        self._lock.close()

    def end_predecessor(self) -> list[str]:
        """Ends what a dead launcher of this name left; returns the names of those processes. Blocks for `LEAVE_S` at most."""
        note = read_note(self._path("json"))
        if note is None or not (left := note.left):
            return []
        for child in left:
            send_signal(child, signal.SIGTERM)
        for child in wait_ended(left, LEAVE_S):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)  # each child is the first of its session
            send_signal(child, signal.SIGKILL)
        wait_ended(left, LEAVE_S)
        return sorted(name for name, child in note.children.items() if child in left)

    def write(self, children: Mapping[str, int], *, logs: Path, grace_s: float) -> None:
        """Notes what runs.

        Args:
            children: name -> number of each process; those that have ended meanwhile are left out.
        """
        me = identify(os.getpid())
        assert me is not None  # we run
        found = {name: known for name, pid in children.items() if (known := identify(pid)) is not None}
        text = orjson.dumps(
            {
                "node": self._node,
                "namespace": self._namespace,
                "machine": machine_boot(),
                "launcher": [me.pid, me.started],
                "children": {name: [child.pid, child.started] for name, child in found.items()},
                "logs": str(logs),
                "grace_s": grace_s,
            }
        )
        fresh = self._path("new")
        fresh.write_bytes(text)
        fresh.replace(self._path("json"))

    def remove_note(self) -> None:
        """When nothing of it runs any more. The lock's file stays: another may wait for it by now."""
        self._path("json").unlink(missing_ok=True)

    @property
    def measures(self) -> Path:
        """Folder for what its processes count."""
        return self._path("measures")

    @property
    def password_file(self) -> Path:
        """Of Redis, when its address had a password in it."""
        return self._path("password")

    def _path(self, kind: str) -> Path:
        return self._folder / f"{self._namespace}.{self._node}.{kind}"


def read_note(path: Path) -> NodeNote | None:
    """A note; None when there is none, or it cannot be read."""
    try:
        found = orjson.loads(path.read_bytes())
        return NodeNote(
            node=str(found["node"]),
            namespace=str(found["namespace"]),
            machine=str(found["machine"]),
            launcher=_identity(found["launcher"]),
            children={str(name): _identity(child) for name, child in found["children"].items()},
            logs=str(found["logs"]),
            grace_s=float(found["grace_s"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def notes_here(folder: Path | None = None) -> Iterator[tuple[Path, NodeNote]]:
    """Notes of this user's launchers on this machine."""
    for path in sorted((folder or Folders.from_environment().run / FOLDER).glob("*.json")):
        if (note := read_note(path)) is not None:
            yield path, note


def is_at(lock: FileLock, path: Path) -> bool:
    """Whether what is locked is the file that stands there now."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    return False


def _identity(words: Sequence[object]) -> ProcessIdentity:
    pid, started = words
    if not (isinstance(pid, int) and isinstance(started, int) and pid > 1):
        raise ValueError(f"expected a process, got {words!r}")
    return ProcessIdentity(pid, started)
