"""Ends processes of a sandbox that went over a bound. Blocks; called in the watchdog's thread.

Whoever is to end is told of first, then signalled. The other way round the result of a command could be on its way before anybody knew
why it had ended: to stop a process is enough for that, a shell with job control answers when its command stops. So a notice can be untrue
of a process that ended by itself in the microseconds between; it was over its bound all the same.

Both return when who was killed has ended, or after `GONE_S`: while one of them runs, nothing new is started in the sandbox (`Watch.quiet`),
which it would take for a part of the bomb.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Sequence

from workers.sandbox.limits.process_table import Process, numbers_of, read_process, signal_exactly

ROUNDS = 50
"""Looks at a family that keeps forking. Each stops all that it finds, so that a bomb is down after three or four."""
NAMED = 3
GONE_S = 0.25
"""A killed process is gone in a millisecond, a large one in some tens; one that takes longer hangs in the kernel."""

Tell = Callable[[str], None]
"""Given who will be ended, in words."""


def kill(processes: Iterable[Process], tell: Tell) -> None:
    """Kills those that are still there, after telling who they are. Who has ended, or is not ours to end, is not spoken of."""
    there = [process for process in processes if signal_exactly(process, 0)]
    if there:
        tell(named(there))
    _kill_all(there)


def stop_then_kill(find: Callable[[], Sequence[Process]], spared: Callable[[Process], bool], tell: Tell) -> None:
    """Ends a family faster than it can fork: whoever is found is stopped first, until a look finds nobody new; then all are killed.

    A stopped process keeps its number, so a bomb cannot grow past the bound on processes meanwhile, and cannot answer a death. Told of are
    those that the first look found.
    """
    stopped: dict[tuple[int, int], Process] = {}
    for _ in range(ROUNDS):
        fresh = [
            process for process in find() if (process.pid, process.started) not in stopped and not process.is_ended and not spared(process)
        ]
        if not fresh:
            break
        if not stopped:
            tell(named(fresh))
        for process in fresh:
            signal_exactly(process, signal.SIGSTOP)
            stopped[process.pid, process.started] = process
    _kill_all(list(stopped.values()))


def _kill_all(processes: Sequence[Process]) -> None:
    for process in processes:
        signal_exactly(process, signal.SIGKILL)
    deadline = time.monotonic() + GONE_S
    for process in processes:
        with contextlib.suppress(OSError):  # there is no such process any more
            descriptor = os.pidfd_open(process.pid)
            try:
                now = read_process(process.pid)
                if now is not None and now.started == process.started:
                    ended = select.poll()
                    ended.register(descriptor, select.POLLIN)
                    ended.poll(max(0.0, deadline - time.monotonic()) * 1000)
            finally:
                os.close(descriptor)


def named(processes: Sequence[Process]) -> str:
    """Some by name, and how many more."""
    names = ", ".join(map(name_of, processes[:NAMED]))
    return names if len(processes) <= NAMED else f"{names} and {len(processes) - NAMED} more"


def name_of(process: Process) -> str:
    """As `ps` shows it inside. What runs there names itself as it likes: letters that could end or forge a line are not shown."""
    inside = numbers_of(process.pid)[-1:] or [process.pid]
    shown = "".join(letter if letter.isprintable() and letter not in "[]" else "?" for letter in process.name)
    return f"{shown} (pid {inside[0]})"
