"""Runs one command as a process group that never outlives whoever started it.

    python -m ops.group_guard GRACE_S COMMAND [ARGUMENT ...]

For programs that do not watch their parent, and that start processes of their own (an inference server and its workers).

    starter ──pipe── guard ──child── command ── what it starts

- End of file on the pipe named by `ROLLSTREAM_PARENT_FD`, and SIGTERM or SIGINT to the guard, end the command: SIGTERM to it alone, so that
  it can end its own, and SIGKILL to the whole group when the grace period is over. A second signal does not wait.
- When the command has ended, for whatever reason, what is left of its group is killed. Then the guard ends with its exit code, or 128 and
  the signal's number.
- When the guard is killed the kernel sends the command SIGTERM (Linux: parent-death signal; the guard has one thread, so the thread that
  forked lives as long as the process).

Loads little beside the standard library: there is one of it for each server.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from pipeline.parent_death import die_with_parent

PARENT_FD = "ROLLSTREAM_PARENT_FD"
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run(command: Sequence[str], *, grace_s: float, environ: Mapping[str, str]) -> int:
    """Runs the command to its end and answers the exit code for the shell."""
    wakeup, wakeup_send = socket.socketpair()
    for end in (wakeup, wakeup_send):
        end.setblocking(False)
    for number in (*_SIGNALS, signal.SIGCHLD):
        signal.signal(number, _note)
    signal.set_wakeup_fd(wakeup_send.fileno(), warn_on_full_buffer=False)
    with selectors.DefaultSelector() as selector:
        selector.register(wakeup, selectors.EVENT_READ)
        if environ.get(PARENT_FD):
            selector.register(int(environ[PARENT_FD]), selectors.EVENT_READ)
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env={name: value for name, value in environ.items() if name != PARENT_FD},
            process_group=0,
            preexec_fn=die_with_parent(),  # safe: one thread
        )
        code = _watch(child, selector, wakeup, grace_s)
    return code if code >= 0 else 128 - code


def _watch(child: subprocess.Popen[bytes], selector: selectors.BaseSelector, wakeup: socket.socket, grace_s: float) -> int:
    """Waits for the child's end, and hastens it when told to."""
    deadline_s: float | None = None
    while not _has_ended(child):
        wait_s = None if deadline_s is None else deadline_s - time.monotonic()
        if wait_s is not None and wait_s <= 0:
            _kill_group(child)
            wait_s = None
        for key, _ in selector.select(wait_s):
            if key.fileobj is wakeup:
                told = any(number in _SIGNALS for number in wakeup.recv(4096))
            else:
                told = not os.read(key.fd, 4096)
                if told:
                    selector.unregister(key.fileobj)
            if told and deadline_s is None:
                deadline_s = time.monotonic() + grace_s
                with contextlib.suppress(ProcessLookupError):
                    child.terminate()
            elif told:
                deadline_s = time.monotonic()
    _kill_group(child)  # before it is reaped: as long as it is a zombie its group id is its own
    return child.wait()


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    if sys.platform == "darwin":
        return child.poll() is not None
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left in it
        os.killpg(child.pid, signal.SIGKILL)


def _note(number: int, frame: object) -> None:
    """A signal handler that does nothing: the wake-up descriptor has told already."""


def main(argv: Sequence[str]) -> int:
    """The command line."""
    if len(argv) < 2:
        print("usage: python -m ops.group_guard GRACE_S COMMAND [ARGUMENT ...]", file=sys.stderr)
        return 2
    try:
        return run(argv[1:], grace_s=float(argv[0]), environ=os.environ)
    except OSError as error:
        print(f"{argv[1]} cannot be started: {error}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
