"""To start a program behind the walls: to fork, to enter, to become it.

A child on its way in has the guest's uid and can be stopped by it. So it is set going again, and killed in the end, and the line to the
worker is listened to meanwhile: no guest keeps its holder from ending. Nor does it keep what ends with the holder's: the child closes the
sockets first by which PID 1 and the worker know that the holder lives.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Any

from . import becoming, entering
from .starting import prepare
from .walls import Walls
from .worker_line import WorkerLine

ENTER_TIMEOUT_S = 10.0
"""For a child on its way in, a thousand times what it takes: a loaded node is slow, a guest that stops it is for ever."""
GO_ON_S = 0.25
"""Far above what entering takes, so that it is seen only where something is wrong."""


def start_inside(line: WorkerLine, walls: Walls, request: Mapping[str, Any], places: Mapping[int, int], terminal: int = -1) -> int:
    """Forks a child that enters and forks again, since a PID namespace is for children; the second becomes the program.

    Args:
        terminal: a terminal's slave side that becomes the controlling one, and 0, 1 and 2; -1 = none.

    Raises:
        OSError: what kept it from that, or that it is time to stop; no child is left.
    """
    error_read, error_write = os.pipe()
    number_read, number_write = os.pipe()
    prepared = prepare(request["limits"], follows_parent=False)
    between = os.fork()
    if between == 0:
        try:
            line.let_go()
            walls.let_go()
            becoming.join_groups(request["groups"])  # by the node's paths, which end at the next step
            becoming.set_oom_score()
            entering.hide()
            entering.forbid_imports()
            walls.namespaces.join()
            walls.namespaces.join_user()
            pid = os.fork()
            if pid:
                os.write(number_write, str(pid).encode())
                os._exit(0)
            os.setsid()
            if terminal >= 0:
                fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
                places = {0: terminal, 1: terminal, 2: terminal, **places}
            error_write = becoming.put_in_place(places, error_write)
            becoming.enter(request["cwd"])
            prepared()
            entering.drop_privileges(walls.seccomp)
            becoming.become(request["argv"], request["env"])
        except OSError as error:
            becoming.tell(error_write, error)
        finally:
            os._exit(126)
    os.close(error_write)
    os.close(number_write)
    try:
        pid = _number(line, number_read, between)
        if not pid:
            os.set_blocking(error_read, False)
            with contextlib.suppress(BlockingIOError):
                becoming.hear(error_read)
            raise OSError(errno.EIO, "nothing came of entering the sandbox")
        try:
            _hear(line, error_read, pid)
        except OSError:
            os.waitpid(pid, 0)
            raise
    finally:
        os.close(number_read)
        os.close(error_read)
    return pid


def _number(line: WorkerLine, number_read: int, between: int) -> int:
    """What the first child says the second one is; 0 = it failed."""
    if not line.wait(number_read, timeout_s=ENTER_TIMEOUT_S):
        os.kill(between, signal.SIGKILL)
    os.waitpid(between, 0)
    os.set_blocking(number_read, False)  # the child holds the other side until it is the program
    try:
        return int(os.read(number_read, 32) or b"0")
    except BlockingIOError:
        return 0


def _hear(line: WorkerLine, error_read: int, pid: int) -> None:
    """Waits until the child has become the program; raises what kept it from that."""
    deadline = time.monotonic() + ENTER_TIMEOUT_S
    while not line.wait(error_read, timeout_s=GO_ON_S):
        is_late = time.monotonic() > deadline
        gives_up = is_late or line.stopping is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if gives_up else signal.SIGCONT)
        if is_late:
            raise OSError(errno.ETIMEDOUT, f"who enters the sandbox was held up for {ENTER_TIMEOUT_S:g} s: something inside stops it")
        if gives_up:
            raise OSError(errno.ECANCELED, "stopped meanwhile")
    becoming.hear(error_read)


def start_inside_on_terminal(line: WorkerLine, walls: Walls, request: Mapping[str, Any], given: Sequence[int]) -> tuple[int, int]:
    """The terminal is of the node's devpts and the program of the sandbox: `/dev/tty` names it wherever it was opened."""
    master, slave = os.openpty()
    try:
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", request["rows"], request["columns"], 0, 0))
        attributes = termios.tcgetattr(slave)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        pid = start_inside(line, walls, request, dict(zip(request["fds"], given, strict=True)), slave)
    except BaseException:
        os.close(master)
        raise
    finally:
        os.close(slave)
    return pid, master
