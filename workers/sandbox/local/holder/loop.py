"""The loop of a holder: requests from the worker, ends of children, until it is time to stop."""

from __future__ import annotations

import errno
import os
import resource
import sys
from typing import Any

from . import becoming
from .children import Children
from .ending import end_everything, kill
from .starting import prepare, start, start_on_terminal
from .worker_line import WorkerLine

if sys.platform == "linux":
    from . import walls
    from .starting_inside import start_inside, start_inside_on_terminal


class Holder:
    """What a request asks for, done."""

    def __init__(self, library: str, worker_pid: int) -> None:
        self._library = library
        self._line = WorkerLine(worker_pid)
        self._children = Children(self._line)
        self._leases: list[int] = []
        """Held as long as we live."""

    def run(self) -> None:
        line = self._line
        line.send({"event": "ready"})
        while line.stopping is None:
            line.wait()
            while line.requests and line.stopping is None:
                self._answer(line.requests.popleft())
            if line.stopping is None:
                self._children.reap()  # after the answers, whose waits take in the signs of it too
        end_everything(line, self._children, line.stopping)
        line.send({"event": "stopped"})

    def _answer(self, request: dict[str, Any]) -> None:
        line = self._line
        if request["op"] == "kill":
            kill(line, self._children, request["pid"], request["signal"], request["scope"])
            return
        given = [line.descriptors.popleft() for _ in request["fds"]]
        if request["op"] == "hold":
            self._hold(request, given)
            return
        try:
            pid, terminal = self._start(request, given)
        except OSError as error:
            behind = self._children.walls
            if line.stopping is None and behind is not None and behind.are_falling():  # nobody is there any more to be entered
                line.send({"event": "walls_ended"})
                line.stop()
            if line.stopping is None:
                line.send({"id": request["id"], "errno": error.errno or errno.EIO, "error": error.strerror or str(error)})
            return
        finally:
            for number in given:
                os.close(number)
        if request["op"] != "boot":
            self._children.pids.add(pid)
        self._children.record(pid)
        bounds = {"bounds": self._children.walls.bounds} if request["op"] == "boot" and self._children.walls is not None else {}
        line.send({"id": request["id"], "pid": pid, "fds": int(terminal >= 0), **bounds}, terminal)
        if terminal >= 0:
            os.close(terminal)

    def _hold(self, request: dict[str, Any], given: list[int]) -> None:
        """From now on we belong to a sandbox: its leases are ours, and what we say goes where it is looked for."""
        *self._leases, log = given
        try:
            self._children.record_in(request["children_file"])
        except OSError as error:  # its folder was removed meanwhile
            self._line.send({"id": request["id"], "errno": error.errno, "error": error.strerror})
            return
        for number in (1, 2):
            os.dup2(log, number)
        os.close(log)
        self._line.send({"id": request["id"], "pid": os.getpid(), "fds": 0})

    def _start(self, request: dict[str, Any], given: list[int]) -> tuple[int, int]:
        """Returns the process, and a terminal's master side or -1."""
        behind = None if request.get("outside") else self._children.walls
        if request["op"] == "boot":
            return walls.build(request, given, self._line, self._children), -1
        if request["op"] == "pty":
            if behind is not None:
                return start_inside_on_terminal(self._line, behind, request, given)
            return start_on_terminal(request, given, self._library)
        places = dict(zip(request["fds"], given, strict=True))
        if behind is not None:
            return start_inside(self._line, behind, request, places), -1
        groups = () if request.get("outside") else request["groups"]
        return start(request["argv"], request["env"], request["cwd"], places, prepare(request["limits"], groups)), -1


def main() -> None:
    library, worker_pid = sys.argv[1:]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1024 and (hard == resource.RLIM_INFINITY or hard >= 1024):
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    becoming.prctl(becoming.PR_SET_NAME, b"rs-holder")
    becoming.prctl(becoming.PR_SET_CHILD_SUBREAPER, 1)
    Holder(library, int(worker_pid)).run()
