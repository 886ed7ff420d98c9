"""Which processes belong to which sandbox, and what each uses: read from /proc often, so cheaply. Linux only.

1. A process belongs to a sandbox when it descends from its root (the holder, which is a subreaper: nothing that daemonises leaves it).
2. A look reads the line of each process that belongs to a sandbox, and of each that was not there at the look before. All others
   (the node's own, which may be thousands) are known to be strangers and are not read. A number can pass from a stranger to a process
   of a sandbox between two looks; so a share of the strangers is read again each time.
3. A number alone names nobody: a process is its number and the moment it started, and is signalled as that.
4. A process ends with its last thread, not with its first: whoever lets that one end must not be forgotten, nor seem to use nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
RECHECKED_SHARE = 16
"""One of so many strangers is read again a look: a number that changed hands unseen is found within seconds."""
LINE_BYTES = 1024
"""A line of /proc/PID/stat has some 350."""


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table at one moment."""

    pid: int
    started: int
    """Clock ticks since boot."""
    parent: int
    name: str
    state: str
    threads: int
    rss_bytes: int
    """Resident memory; pages shared with others count in each."""
    cpu_s: float
    reaped_cpu_s: float
    """Of children that ended and were waited for, and of theirs."""

    @property
    def is_ended(self) -> bool:
        """Only its exit code is left: all its threads have ended."""
        return self.state in ("Z", "X") and self.threads <= 1


def read_process(pid: int) -> Process | None:
    """None when there is none of that number."""
    process = _read(f"/proc/{pid}/stat", pid)
    if process is not None and process.state == "Z" and not process.is_ended:
        return replace(process, rss_bytes=_rss_bytes_of_threads(pid))
    return process


def _read(path: str, pid: int) -> Process | None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        line = os.read(descriptor, LINE_BYTES)
    except OSError:  # it ended between the two
        return None
    finally:
        os.close(descriptor)
    head, _, tail = line.rpartition(b")")
    words = tail.split()
    return Process(
        pid=pid,
        started=int(words[19]),
        parent=int(words[1]),
        name=head.partition(b"(")[2].decode("utf-8", "replace"),
        state=words[0].decode(),
        threads=int(words[17]),
        rss_bytes=int(words[21]) * PAGE_BYTES,
        cpu_s=(int(words[11]) + int(words[12])) / TICKS_A_SECOND,
        reaped_cpu_s=(int(words[13]) + int(words[14])) / TICKS_A_SECOND,
    )


def _rss_bytes_of_threads(pid: int) -> int:
    """A process whose first thread has ended looks like one that has ended, without any memory; its other threads have all of it."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            read = _read(f"/proc/{pid}/task/{thread}/stat", pid)
            if read is not None and read.state not in ("Z", "X"):
                return read.rss_bytes
    return 0


class ProcessTable:
    """Finds the members of some families again and again. Not for two threads at once."""

    def __init__(self) -> None:
        self._strangers: dict[int, int] = {}
        """Number -> parent, as last read."""
        self._roots: set[int] = set()
        self._looks = 0

    def look(self, roots: Iterable[int]) -> dict[int, list[Process]]:
        """All descendants of each root, without the roots themselves. A root that has ended has none."""
        wanted = set(roots)
        for root in wanted - self._roots:
            self._forget_below(root)
        self._roots = wanted
        self._looks += 1
        there = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        turn = self._looks % RECHECKED_SHARE
        self._strangers = {pid: parent for pid, parent in self._strangers.items() if pid in there and pid % RECHECKED_SHARE != turn}
        read = {pid: process for pid in there.difference(self._strangers) if (process := read_process(pid))}
        families: dict[int, list[Process]] = {root: [] for root in wanted}
        known: dict[int, int] = {}
        for pid, process in read.items():
            root = self._root_of(process, read, known)
            if root and pid != root:
                families[root].append(process)
            elif not root:
                self._strangers[pid] = process.parent
        return families

    def _root_of(self, process: Process, read: dict[int, Process], known: dict[int, int]) -> int:
        """The root it descends from; 0 = none. Walks up until somebody is met whose answer is known."""
        path: list[int] = []
        here: Process | None = process
        root = 0
        while here is not None:
            if here.pid in self._roots:
                root = here.pid
                break
            if here.pid in known:
                root = known[here.pid]
                break
            path.append(here.pid)
            if here.parent in self._strangers or here.parent in path:
                break
            above = read.get(here.parent)
            if above is None and here.parent:  # it ended since: who has taken the child in?
                here = read_process(here.pid)
                above = read_process(here.parent) if here and here.parent else None
            here = above
        known.update(dict.fromkeys(path, root))
        return root

    def _forget_below(self, root: int) -> None:
        """Makes those strangers be read again that may descend from a root that is new to us."""
        below = {root}
        grew = True
        while grew:
            found = {pid for pid, parent in self._strangers.items() if parent in below} - below
            below |= found
            grew = bool(found)
        for pid in below:
            self._strangers.pop(pid, None)


def numbers_of(pid: int) -> list[int]:
    """The numbers of a process in the PID namespaces it is in, outermost (of those we see) first; empty when it has ended.

    Anyone may read this of any process, also of one that has hidden itself (`PR_SET_DUMPABLE`).
    """
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"NSpid:"):
                return [int(word) for word in line.split()[1:]]
    return []


def own_share_bytes(pid: int) -> int | None:
    """Proportional memory (PSS) of a process: pages shared with n others count as 1/n. Walks its mappings: not for each second."""
    with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return None


def written_bytes(pid: int) -> int | None:
    """What a process has caused to be written to disks so far; pipes and terminals are not in it."""
    with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/io", "rb") as file:
        for line in file:
            if line.startswith(b"write_bytes:"):
                return int(line.split()[1])
    return None


def signal_exactly(process: Process, number: int) -> bool:
    """Signals that process and no other that has got its number since; False when it has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = read_process(process.pid)
        if now is None or now.started != process.started or now.is_ended:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def total(processes: Iterable[Process]) -> int:
    """Processes and threads together; what has ended and is not reaped still holds a number."""
    return sum(max(1, process.threads) for process in processes)
