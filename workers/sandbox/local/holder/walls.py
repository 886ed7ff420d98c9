"""To have the walls of a sandbox built, and to know of them while they stand."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from . import becoming, descendants, entering, keeper, overlaying
from .bounding import bound
from .children import Children
from .descendants import Process
from .starting import start
from .worker_line import WorkerLine

SAID_BYTES = 4000
"""So much of what the command said last goes into an error."""


class Walls:
    """What stands between the sandbox and us, once it stands."""

    def __init__(self, launcher: int, keeper_pid: int, hold: socket.socket, seccomp: bytes, *, entered: bool) -> None:
        self._launcher = Process(launcher)
        self.keeper = Process(keeper_pid)
        self._hold = hold
        self.seccomp = seccomp
        self._namespaces = entering.Namespaces(keeper_pid) if entered else None
        self.bounds: list[str] = []
        """What the kernel bounds of the whole sandbox (`bounding.py`)."""

    @property
    def namespaces(self) -> entering.Namespaces:
        """What is joined to enter.

        Raises:
            OSError: nobody enters: PID 1 starts what runs here.
        """
        if self._namespaces is None:
            raise OSError(errno.EPERM, "nobody enters this sandbox")
        return self._namespaces

    def let_go(self) -> None:
        """In a child of ours, which the guest may stop: PID 1 lives as long as we do, and no longer."""
        self._hold.close()

    def stand_on(self, pid: int) -> bool:
        """Whether that process is one that they end with."""
        return pid in (self._launcher.pid, self.keeper.pid)

    def are_falling(self) -> bool:
        """Whether PID 1 or the command is on its way out. PID 1 kills all others first, which are reaped before it is; and who was killed
        together with the command may be reaped before it."""
        return _is_ending(self.keeper) or _is_ending(self._launcher)

    def inside(self, running: Sequence[Process]) -> list[Process]:
        """Those of our descendants that run behind the walls, the keeper not among them."""
        depth = len(descendants.namespace_numbers("self"))
        found = []
        for process in running:
            with contextlib.suppress(OSError):
                if process.pid != self.keeper.pid and len(descendants.namespace_numbers(process.pid)) > depth:
                    found.append(process)
        return found


def _is_ending(process: Process) -> bool:
    try:
        now = Process(process.pid)
    except (OSError, IndexError, ValueError):
        return True
    return now.started != process.started or now.is_exiting


def build(request: dict[str, Any], given: Sequence[int], line: WorkerLine, children: Children) -> int:
    """Runs the command that builds the walls; returns PID 1 when that says that they stand.

    Raises:
        OSError: they do not; with the last that the command said.
    """
    assert children.walls is None, "a sandbox boots once"
    ready, theirs_ready = os.pipe()
    hold, theirs_hold = socket.socketpair()
    said = os.memfd_create("said")
    null = os.open(os.devnull, os.O_RDONLY)
    places = dict(zip(request["fds"], given, strict=True))
    places |= {0: null, 1: said, 2: said, keeper.READY_FD: theirs_ready, keeper.HOLD_FD: theirs_hold.fileno()}
    hold.sendall(bytes.fromhex(request["told"]))
    parent = os.getpid()

    def prepared() -> None:
        if not request["entered"]:  # PID 1 starts what runs for the sandbox
            becoming.join_groups(request["groups"])
        if request["overlay"]:
            overlaying.mount_layers(*request["overlay"])
        becoming.follow(parent)
        becoming.default_signals()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    try:
        launcher = start(request["argv"], request["env"], "/", places, prepared)
        children.record(launcher)
        theirs_hold.close()
        os.close(theirs_ready)
        theirs_ready = -1
        problem = _wait_ready(line, ready, launcher, request["timeout_s"])
        started = descendants.started_by(launcher) if not problem else []
        pid = descendants.find_keeper(started)
        if not pid and not problem:
            started = descendants.below(launcher, descendants.process_table())
            pid = descendants.find_keeper(started)
        if not pid:
            said_text = os.pread(said, SAID_BYTES, max(0, os.fstat(said).st_size - SAID_BYTES)).decode("utf-8", "replace").strip()
            raise OSError(errno.EIO, f"{problem or 'no PID 1 below it'}" + (f": {said_text}" if said_text else ""))
        children.walls = Walls(launcher, pid, hold, bytes.fromhex(request["seccomp"]), entered=request["entered"])
        children.walls.bounds = _bounds(children.walls, pid, request)
        # daemons of FUSE: they outlive the command, and carry no mark
        for helper in started:
            if helper.pid != pid:
                children.record(helper.pid)
    finally:
        os.close(ready)
        os.close(said)
        os.close(null)
        if theirs_ready >= 0:
            os.close(theirs_ready)
    return pid


def _bounds(walls: Walls, pid: int, request: Mapping[str, Any]) -> list[str]:
    """Where nobody enters to start programs, the namespaces are entered for this alone, if that is allowed."""
    processes = request["limits"]["processes"]
    if request["entered"]:
        return bound(walls.namespaces, processes)
    try:
        namespaces = entering.Namespaces(pid)
    except OSError:
        return []
    try:
        return bound(namespaces, processes, entered=False)
    finally:
        namespaces.close()


def _wait_ready(line: WorkerLine, ready: int, launcher: int, timeout_s: float) -> str:
    """Empty when the byte of PID 1 has come and the command goes on, else what happened instead.

    The pipe alone would not tell of the command's end: what that had cloned has it too, and may be left behind where it waits for a word
    of the command for ever, as does the child of a bwrap that is killed before it has let it go on.
    """
    ended = os.pidfd_open(launcher)
    try:
        if not line.wait(ready, ended, timeout_s=timeout_s):
            return "stopped meanwhile" if line.stopping is not None else f"no sign of PID 1 within {timeout_s:g} s"
    finally:
        os.close(ended)
    has_ended = os.waitid(os.P_PID, launcher, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return "" if not has_ended and os.read(ready, 1) else _how_it_ended(line, launcher)


def _how_it_ended(line: WorkerLine, launcher: int) -> str:
    """It has; or PID 1 has, and nobody has that side of the pipe any more."""
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        pid, status = os.waitpid(launcher, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return f"it ended with {f'exit code {code}' if code >= 0 else f'signal {-code}'}"
        line.wait_for_child(0.01)
    return "PID 1 ended before it was ready"
