"""Ends processes of a sandbox that went over a bound. Blocks; called in the watchdog's thread."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence

from workers.sandbox.limits.process_table import Process, numbers_of, signal_exactly

ROUNDS = 50
"""Looks at a family that keeps forking. Each stops all that it finds, so that a bomb is down after three or four."""
NAMED = 3


def kill(processes: Iterable[Process]) -> list[str]:
    """Kills each; returns how those are called that were still there."""
    named: list[str] = []
    for process in processes:
        inside = numbers_of(process.pid)[-1:] or [process.pid]
        name = f"{process.name} (pid {inside[0]})"  # as `ps` shows it inside
        if signal_exactly(process, signal.SIGKILL):
            named.append(name)
    return named


def stop_then_kill(find: Callable[[], Sequence[Process]], spared: Callable[[Process], bool]) -> list[str]:
    """Ends a family faster than it can fork: whoever is found is stopped first, until a look finds nobody new; then all are killed.

    A stopped process keeps its number, so a bomb cannot grow past the bound on processes meanwhile, and cannot answer a death.
    """
    stopped: dict[tuple[int, int], Process] = {}
    for _ in range(ROUNDS):
        fresh = [
            process for process in find() if (process.pid, process.started) not in stopped and not process.is_ended and not spared(process)
        ]
        if not fresh:
            break
        for process in fresh:
            signal_exactly(process, signal.SIGSTOP)
            stopped[process.pid, process.started] = process
    return kill(stopped.values())


def listed(names: Sequence[str]) -> str:
    """Some names, and how many more."""
    if len(names) <= NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
