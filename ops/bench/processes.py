"""CPU that worker processes have used: what a comparison can trust on a machine that others use too."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from ops.child_processes import Child


def cpu_s(workers: Iterable[Child]) -> float:
    """Of these processes and all that they started, also what has ended by now."""
    trees = [psutil.Process(worker.process.pid) for worker in workers if worker.exit_code is None]
    total = 0.0
    for process in [*trees, *(child for tree in trees for child in tree.children(recursive=True))]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # it ended meanwhile; whoever started it knows what it used
            continue
        total += sum(times[:4])  # its own, and of those that it waited for; user and system of each
    return total
