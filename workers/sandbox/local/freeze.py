"""Holds all that runs in a sandbox still for a moment, and lets it go on as if nothing had been. Linux; blocks, called in a thread.

1. Held still are the descendants of the holder that are inside, but not the keeper, which does nothing. `stop` returns when one look
   finds each of them, with all of its threads, stopped: then nobody is left who could write, fork, or wake another.
2. From above downwards, each only when its parent has stopped: a shell with job control that saw its child stop would take the terminal
   back. Let go they are from below upwards, for the same reason.
3. What had stopped by itself (Ctrl-Z) stays stopped.
4. A parent that waits for its child to become another program (`vfork`) cannot stop before that: then all go on for a moment, and it is
   tried again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field

from workers.sandbox.limits.process_table import Process, ProcessTable, numbers_of, read_process
from workers.sandbox.local.identity import ProcessIdentity, is_running

STOPPED = frozenset("Tt")
ENDED = frozenset("ZXx")
FREEZE_S = 10.0
"""A process stops in microseconds, after its call to the kernel: one that writes to a full disk takes longer."""
TRY_S = 0.5
PAUSE_S, BETWEEN_TRIES_S = 0.0005, 0.02


class NotFrozenError(Exception):
    """Something did not stop in time; says what. All goes on."""


@dataclass(slots=True)
class Freeze:
    """What is held still.

    Args:
        holder: the root of all; when it has ended, all have.
        keeper_pid: PID 1 inside; 0 = no walls.
    """

    holder: ProcessIdentity
    keeper_pid: int
    _stopped: list[Process] = field(default_factory=list)
    """In the order they were stopped in."""

    def stop(self) -> None:
        """Stops all.

        Raises:
            NotFrozenError
        """
        deadline = time.monotonic() + FREEZE_S
        while True:
            running = self._try(min(deadline, time.monotonic() + TRY_S))
            if not running:
                return
            self.let_go()
            if time.monotonic() >= deadline:
                raise NotFrozenError(f"{running.name} (pid {running.pid}) did not stop within {FREEZE_S:g} s")
            time.sleep(BETWEEN_TRIES_S)

    def let_go(self) -> None:
        """Lets all that `stop` stopped go on."""
        while self._stopped:
            _signal(self._stopped.pop(), signal.SIGCONT)

    def _try(self, until: float) -> Process | None:
        """Stops what can be stopped by then; answers one that still runs."""
        table = ProcessTable()
        depth = len(numbers_of(self.keeper_pid)) if self.keeper_pid else 0
        asked: set[tuple[int, int]] = set()
        while True:
            family = table.look([self.holder.pid])[self.holder.pid] if is_running(self.holder) else []
            inside = {process.pid: process for process in family if self._is_inside(process, depth)}
            running = [process for process in inside.values() if not _is_still(process)]
            if not running:
                return None
            if time.monotonic() >= until:
                return running[0]
            for process in running:
                identity = (process.pid, process.started)
                above = inside.get(process.parent)
                if identity in asked or (above is not None and not _is_still(above)):
                    continue
                if _signal(process, signal.SIGSTOP):
                    asked.add(identity)
                    self._stopped.append(process)
            time.sleep(PAUSE_S)

    def _is_inside(self, process: Process, depth: int) -> bool:
        if process.pid == self.keeper_pid or (process.is_ended and process.threads <= 1):  # its first thread may end before the others
            return False
        return not self.keeper_pid or len(numbers_of(process.pid)) >= depth


def _is_still(process: Process) -> bool:
    """Whether it has stopped or ended, by now, with every thread."""
    now = read_process(process.pid)
    if now is None or now.started != process.started:
        return True
    if now.state not in STOPPED | ENDED:
        return False
    try:
        threads = os.listdir(f"/proc/{process.pid}/task")
    except OSError:
        return True
    return all(_thread_state(process.pid, thread) in STOPPED | ENDED for thread in threads)


def _signal(process: Process, number: int) -> bool:
    """Signals that process and no other; False when it has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = read_process(process.pid)
        if now is None or now.started != process.started:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def _thread_state(pid: int, thread: str) -> str:
    """`X` when there is none any more."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
        return file.read(1024).rpartition(b")")[2].split()[0].decode()
    return "X"
