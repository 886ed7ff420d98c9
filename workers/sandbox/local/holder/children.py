"""What was started here: its record on disk, and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from .descendants import Process
from .worker_line import WorkerLine

if TYPE_CHECKING:
    from .walls import Walls

LINUX = sys.platform == "linux"


class Children:
    """Processes that the worker asked for and that have not ended, and the walls they are behind."""

    def __init__(self, line: WorkerLine, file: str) -> None:
        self._line = line
        self._log = open(file, "a", encoding="ascii")  # noqa: SIM115  # open as long as we live
        self.pids: set[int] = set()
        self.walls: Walls | None = None

    def record(self, pid: int) -> None:
        """Whoever looks for what a killed holder left finds it by this."""
        if LINUX:
            with contextlib.suppress(OSError):
                self._log.write(f"{pid} {Process(pid).started}\n")
                self._log.flush()

    def reap(self) -> bool:
        """Takes in what has ended; False when no child is left, living or dead."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            code = os.waitstatus_to_exitcode(status)
            if self.walls is not None:
                if self._line.stopping is None and (self.walls.stand_on(pid) or (code == -signal.SIGKILL and self.walls.are_falling())):
                    self._line.send({"event": "walls_ended"})  # and not that a command was killed: it was the sandbox
                    self._line.stop()
                if self._line.stopping is not None:
                    continue  # the end of the control socket tells
            if pid in self.pids:
                self.pids.discard(pid)
                self._line.send({"event": "exit", "pid": pid, "code": code})
