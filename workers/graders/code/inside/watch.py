"""Waits for the end of a program, and ends it when its time is over."""

from __future__ import annotations

import os
import select
import sys
import time

TYPE_CHECKING = False  # of `typing`, without loading it
if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.graders.code.inside.leftovers import descendants, kill


LOOK_S = 0.25
MOST_SHARE = 0.2
"""Of the time that passes, for looks at the program's files."""


def watch(child: int, time_s: float, cap_s: float, has_too_much: Callable[[], bool]) -> dict[str, object]:
    """Waits for the end of the program, and ends it when its time is over, or when a look at its files finds too much.

    Its time is what passed less what it waited for a core: on a busy machine an honest program is not called slow. `cap_s` ends the wait
    in any case. A program that has more processes or threads may have kept the cores from itself, and one that gave way to others has kept
    itself from them, so that is its own time too.
    """
    wait = waiter(child)
    began = time.monotonic()
    how, own, look_at, shared_kib = "itself", 0.0, LOOK_S, 0
    while True:
        passed = time.monotonic() - began
        own = max(0.0, passed - waited_for_core(child))
        reaped, status, usage = os.wait4(child, os.WNOHANG)
        if reaped:
            break
        if own >= time_s or passed >= cap_s:
            how = "time" if own >= time_s or not is_alone(child) or stood_back(child) else "cap"
            kill(child)
            _, status, usage = os.wait4(child, 0)
            break
        if passed >= look_at:
            shared_kib = max(shared_kib, of_files_kib(child))
            if has_too_much():
                how = "files"
                kill(child)
                _, status, usage = os.wait4(child, 0)
                break
            took = time.monotonic() - began - passed
            look_at = passed + max(LOOK_S, took / MOST_SHARE)
        wait(max(0.001, min(time_s - own, cap_s - passed, look_at - passed)))
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    kib = usage.ru_maxrss // (1024 if sys.platform == "darwin" else 1)
    return {
        "ended": how,
        "exit": code,
        "own_s": f"{own:.3f}",
        "wall_s": f"{time.monotonic() - began:.3f}",
        "cpu_s": f"{usage.ru_utime + usage.ru_stime:.3f}",
        "peak_kib": max(0, kib - shared_kib),
    }


def of_files_kib(pid: int) -> int:
    """What a process has in memory of files, which is libraries mostly and not its own."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(b"RssFile:")), 0)
    except (OSError, IndexError, ValueError):
        return 0


def waiter(child: int) -> Callable[[float], object]:
    """Waits so many seconds, or until the process has ended."""
    try:
        poll = select.poll()
        poll.register(os.pidfd_open(child), select.POLLIN)
    except (AttributeError, OSError):  # Python 3.8, an old kernel, another system
        import signal

        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # an end before this is seen by the first look
        return lambda wait_s: select.select([read_end], [], [], wait_s)[0] and os.read(read_end, 4096)
    return lambda wait_s: poll.poll(int(wait_s * 1000) + 1)


def is_alone(child: int) -> bool:
    """Whether the program has one thread and no other process."""
    try:
        return len(os.listdir(f"/proc/{child}/task")) == 1 and descendants(os.getpid()) == [child]
    except OSError:
        return True


def stood_back(child: int) -> bool:
    """Whether the program gave way to others by itself: a lower priority than it was begun with, another class, fewer cores."""
    try:
        return (
            os.getpriority(os.PRIO_PROCESS, child) != os.getpriority(os.PRIO_PROCESS, 0)
            or os.sched_getscheduler(child) != os.sched_getscheduler(0)
            or os.sched_getaffinity(child) != os.sched_getaffinity(0)
        )
    except (OSError, AttributeError):  # it has ended, or the system has no such thing
        return False


def waited_for_core(pid: int) -> float:
    """Seconds in which the process's main thread could have run and no core was free; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
