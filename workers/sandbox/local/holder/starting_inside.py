"""To start a program behind the walls: to fork, to enter, to become it."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios
from collections.abc import Mapping, Sequence
from typing import Any

from . import becoming, entering
from .starting import prepare
from .walls import Walls

ENTER_TIMEOUT_S = 10.0
"""For a child on its way in, a thousand times what it takes: a loaded node is slow, a guest that stops it is for ever."""


def start_inside(walls: Walls, request: Mapping[str, Any], places: Mapping[int, int], terminal: int = -1) -> int:
    """Forks a child that enters and forks again, since a PID namespace is for children; the second becomes the program.

    Args:
        terminal: a terminal's slave side that becomes the controlling one, and 0, 1 and 2; -1 = none.
    """
    error_read, error_write = os.pipe()
    number_read, number_write = os.pipe()
    prepared = prepare(request["limits"], follows_parent=False)
    between = os.fork()
    if between == 0:
        try:
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
    os.waitpid(between, 0)
    pid = int(os.read(number_read, 32) or b"0")  # not to its end: the child holds the other side until it is the program
    os.close(number_read)
    try:
        becoming.hear(error_read, pid=pid, timeout_s=ENTER_TIMEOUT_S)
    except OSError:
        if pid:
            os.waitpid(pid, 0)
        raise
    if not pid:
        raise OSError(errno.EIO, "nothing came of entering the sandbox")
    return pid


def start_inside_on_terminal(walls: Walls, request: Mapping[str, Any], given: Sequence[int]) -> tuple[int, int]:
    """The terminal is of the node's devpts and the program of the sandbox: `/dev/tty` names it wherever it was opened."""
    master, slave = os.openpty()
    try:
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", request["rows"], request["columns"], 0, 0))
        attributes = termios.tcgetattr(slave)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        pid = start_inside(walls, request, dict(zip(request["fds"], given, strict=True)), slave)
    except BaseException:
        os.close(master)
        raise
    finally:
        os.close(slave)
    return pid, master
