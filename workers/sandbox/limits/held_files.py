"""What processes of a sandbox hold open that has no name: files in memory (`memfd_create`), and files that were deleted.

The first are in no folder, and in a process's memory only as far as they are mapped; the second occupy the disk until the last descriptor
is closed. So both are counted by the descriptors, which is too dear for each look: `SharedMemory` tells when it may have become worth it.
What is held otherwise (in a mapping without a descriptor, on its way through a socket) is seen by nobody but the kernel.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from workers.sandbox.limits.process_table import Process

BLOCK_BYTES = 512
MOVED_BYTES = 8 * 1024 * 1024
"""Of the node's shared memory, since the last time: less cannot bring a sandbox over a bound that it was not near before."""


@dataclass(frozen=True, slots=True)
class HeldFiles:
    """By number and start of a process; a file that several hold counts in one of them."""

    memory: Mapping[tuple[int, int], int] = field(default_factory=dict)
    disk: Mapping[tuple[int, int], int] = field(default_factory=dict)
    hidden: tuple[Process, ...] = ()
    """Those that nobody may look into."""


def held_files(processes: Iterable[Process]) -> HeldFiles:
    """Looks at every descriptor of these processes. Blocks; some 10 us each."""
    memory: dict[tuple[int, int], int] = {}
    disk: dict[tuple[int, int], int] = {}
    seen: set[tuple[int, int]] = set()
    hidden: list[Process] = []
    for process in sorted(processes, key=lambda one: one.pid):
        files = _open_files(process.pid)
        if files is None:
            hidden.append(process)
        for found in files or ():
            if not stat.S_ISREG(found.st_mode) or found.st_nlink or (found.st_dev, found.st_ino) in seen:
                continue
            seen.add((found.st_dev, found.st_ino))
            kind = memory if found.st_dev == _memory_device() else disk
            holder = (process.pid, process.started)
            kind[holder] = kind.get(holder, 0) + found.st_blocks * BLOCK_BYTES
    return HeldFiles(memory, disk, tuple(hidden))


def own_shared_memory_bytes(pid: int) -> int:
    """What of a process's proportional memory is mapped files in memory: counted there already."""
    with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss_Shmem:"):
                return int(line.split()[1]) * 1024
    return 0


class SharedMemory:
    """Whether files in memory have grown or shrunk on this node, by one line of /proc."""

    def __init__(self) -> None:
        self._before = node_shared_memory_bytes()

    def has_moved(self) -> bool:
        """Since it last said yes."""
        now = node_shared_memory_bytes()
        if abs(now - self._before) < MOVED_BYTES:
            return False
        self._before = now
        return True


def node_shared_memory_bytes() -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        for line in Path("/proc/meminfo").read_bytes().splitlines():
            if line.startswith(b"Shmem:"):
                return int(line.split()[1]) * 1024
    return 0


def _open_files(pid: int) -> list[os.stat_result] | None:
    """None when they are not ours to see."""
    folder = f"/proc/{pid}/fd"
    found: list[os.stat_result] = []
    try:
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):  # it was closed
                found.append(os.stat(f"{folder}/{name}"))  # the file itself, whatever its name means by now
    except PermissionError:
        return None
    except OSError:  # it has ended
        return []
    return found


@cache
def _memory_device() -> int:
    """All files in memory without a name are on one device of the kernel's own."""
    if sys.platform != "linux":
        return -1
    descriptor = os.memfd_create("device")
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)
