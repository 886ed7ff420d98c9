"""How many cores this process may use: what numbers of slots, starts at once and the like go by. Never the number the machine has."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path


def usable_cores(*, proc: Path = Path("/proc"), mounts: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores by affinity (Slurm, `taskset`) and by the CPU quota of our control groups; at least 1.

    Args:
        proc, mounts: where the kernel shows itself; others in tests.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *(math.ceil(quota) for quota in _quotas(proc, mounts))]))


def _quotas(proc: Path, mounts: Path) -> Iterator[float]:
    """Of our group and of each above it: the kernel holds us to the least."""
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                for root in (mounts, mounts / "unified"):
                    yield from _upwards(root, group, _quota_v2)
            elif "cpu" in controllers.split(","):
                yield from _upwards(mounts / "cpu", group, _quota_v1)


def _upwards(root: Path, group: str, read: Callable[[Path], float]) -> Iterator[float]:
    folder = root / group.lstrip("/")
    while folder.is_relative_to(root):
        with contextlib.suppress(OSError, ValueError):
            quota = read(folder)
            if quota > 0:
                yield quota
        folder = folder.parent


def _quota_v2(folder: Path) -> float:
    quota, period = (folder / "cpu.max").read_text().split()
    return 0.0 if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float:
    quota = int((folder / "cpu.cfs_quota_us").read_text())
    return quota / int((folder / "cpu.cfs_period_us").read_text())
