"""Children that the kernel ends when their parent is killed (Linux; elsewhere a pipe has to do). Needs the standard library alone."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], None] | None:
    """What `subprocess.Popen` is to call in a child of this process (`preexec_fn`): SIGTERM when the thread that forked it has ended.

    Safe in a process of one thread only: then nothing can hold a lock across the fork, and the thread lives as long as the process.
    """
    if sys.platform != "linux":
        return None
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl  # before the fork, where it may load what it wants

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was killed between the fork and this line
            os._exit(1)

    return in_child
