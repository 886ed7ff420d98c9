"""How much memory the server may use: a share of what this process could get, never of what the machine shows.

In a container the machine's RAM is a fiction; the control group's limit is what the kernel kills by. A limit of any group above ours
binds too, so the smallest on the way up counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

SHARE = 0.25
"""Of the limit. While the append-only file is rewritten, copy-on-write can double the server in the worst case: at a quarter, server and
copy stay within half of the limit, and the other half belongs to the workers."""

CAP_BYTES = 4 << 30
"""No more than this by default: headers are small and bodies are bounded, so a larger heap would hide a leak rather than serve anyone."""

_UNLIMITED_BYTES = 1 << 60
"""Control groups of version 1 write "no limit" as a number close to 2**63."""


def memory_limit_bytes(*, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """The memory that this process and its children may use: the least of physical RAM and the limits of its control groups.

    Args:
        proc: where the system tells of this process.
        cgroups: where control groups are mounted, of version 2, version 1 or both.
    """
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_cgroup_limits(proc, cgroups)])


def default_maxmemory_bytes(limit_bytes: int) -> int:
    """`maxmemory` for a machine or container with this limit."""
    return min(int(limit_bytes * SHARE), CAP_BYTES)


def _cgroup_limits(proc: Path, cgroups: Path) -> Iterator[int]:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            for mount in (cgroups, cgroups / "unified"):
                yield from _limits_upwards(mount, group, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits_upwards(cgroups / "memory", group, "memory.limit_in_bytes")


def _limits_upwards(mount: Path, group: str, name: str) -> Iterator[int]:
    """Limits from the group up to the mount's root. In a container the mount often shows only our own group, as its root."""
    folder = mount / group.strip("/")
    while True:
        limit = _read_limit(folder / name)
        if limit is not None:
            yield limit
        if folder == mount or mount not in folder.parents:
            return
        folder = folder.parent


def _read_limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:  # this group, or this version, is not here
        return None
    if not text.isdigit():  # "max"
        return None
    limit = int(text)
    return limit if 0 < limit < _UNLIMITED_BYTES else None
