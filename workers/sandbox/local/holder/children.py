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

    def __init__(self, line: WorkerLine) -> None:
        self._line = line
        self._records = -1
        self.pids: set[int] = set()
        self.walls: Walls | None = None

    def record_in(self, file: str) -> None:
        """Names the file of the records; before anything is started."""
        self._records = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def record(self, pid: int) -> None:
        """Whoever looks for what a killed holder left finds it by this."""
        if LINUX:
            with contextlib.suppress(OSError):
                os.write(self._records, f"{pid} {Process(pid).started}\n".encode())

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
