"""Which processes are below one, by what the kernel says in /proc. Standard library only.

Where there is no /proc (macOS) the table is empty, and who needs more finds it by process groups.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence

LINUX = sys.platform == "linux"
PF_EXITING = 4
"""A flag of a process from when it begins to end, long before it is a zombie when it is a PID 1."""
KILL_PENDING = 1 << (signal.SIGKILL - 1)
"""Of the signals that a process has not met yet: its end is certain, and may be some way off on a busy machine."""


class Process:
    """One line of the process table."""

    __slots__ = ("group", "has_ended", "is_exiting", "parent", "pid", "session", "started")

    def __init__(self, pid: int) -> None:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
        self.pid = pid
        self.started = int(words[19])
        self.has_ended = words[0] in (b"Z", b"X") and int(words[17]) <= 1  # a first thread may have, while others run
        self.is_exiting = bool(int(words[6]) & PF_EXITING or int(words[28]) & KILL_PENDING)
        self.parent, self.group, self.session = int(words[1]), int(words[2]), int(words[3])


def process_table() -> list[Process]:
    table = []
    for name in os.listdir("/proc") if LINUX else ():
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):  # it ended while we looked
                table.append(Process(int(name)))
    return table


def below(root: int, table: list[Process]) -> list[Process]:
    """All descendants of a process, without itself."""
    children: dict[int, list[Process]] = {}
    for process in table:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            found.append(child)
            queue.append(child.pid)
    return found


def started_by(root: int) -> list[Process]:
    """All descendants of a process that starts nothing more, without itself.

    By the kernel's lists of children, where it keeps them: they cost what is below, the table what the whole node runs. One that ends while
    its parent's list is read may hide a sibling.
    """
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return below(root, process_table())
    found: list[Process] = []
    queue = [root]
    while queue:
        parent = queue.pop()
        with contextlib.suppress(OSError, IndexError, ValueError):  # it ended while we looked
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                    numbers = [int(word) for word in file.read().split()]
                found += [Process(number) for number in numbers]
                queue += numbers
    return found


def signal_exactly(process: Process, number: int) -> None:
    """Signals that very process, not one that got its number since."""
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if Process(process.pid).started == process.started:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def namespace_numbers(pid: int | str) -> list[int]:
    """The numbers of a process in its PID namespaces, outermost (of those we see) first."""
    with open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"NSpid:"):
                return list(map(int, line.split()[1:]))
    return []


def find_keeper(started: Sequence[Process]) -> int:
    """PID 1 of the sandbox: of what the launcher started, the innermost that is number 1 where it lives; 0 when there is none."""
    depth, found = len(namespace_numbers("self")), 0
    for process in started:
        with contextlib.suppress(OSError):
            numbers = namespace_numbers(process.pid)
            if len(numbers) > depth and numbers[-1] == 1:
                found = process.pid
    return found
