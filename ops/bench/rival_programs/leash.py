"""Ends a program, and all it started, with the process that started it.

A rival's worker knows nothing of the pipe that our own processes watch (`ROLLSTREAM_PARENT_FD`), and some start processes of their own.
Each program here is the head of a session: at the end of the pipe it kills its whole group.
"""

from __future__ import annotations

import os
import signal
import threading

PARENT_FD = "ROLLSTREAM_PARENT_FD"
"""As in `pipeline.process`, which is not there in the environment of the rivals."""


def end_with_parent() -> None:
    """Watches the pipe from a thread; does nothing without one."""
    word = os.environ.pop(PARENT_FD, "")
    if word:
        os.set_inheritable(int(word), False)
        threading.Thread(target=_watch, args=(int(word),), name="leash", daemon=True).start()


def _watch(fd: int) -> None:
    while os.read(fd, 1):
        continue
    os.killpg(os.getpgid(0), signal.SIGKILL)
