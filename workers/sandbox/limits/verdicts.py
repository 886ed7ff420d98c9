"""Who has to go when a sandbox is over a bound: pure decisions over what one look saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from workers.sandbox.limits.disk import DiskUse
from workers.sandbox.limits.process_table import TICKS_A_SECOND, Process
from workers.sandbox.spec import Limits

ENTERING_S = 10.0
"""Entering takes milliseconds, and is given up after so long."""
DiskCause = Literal["", "depth", "files", "bytes", "deleted"]

NEAR_SHARE = 0.8
"""RSS counts shared pages in each process, so it is never below what the sandbox really has: under this share nothing finer is asked."""
GIB, MIB, KIB = 1024**3, 1024**2, 1024
BUSY_CPU_S = 0.02
"""Two ticks between two looks: less than that is a shell that reaps and prompts."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """A process and what it weighs."""

    process: Process
    bytes: int


def is_near(used: float, limit: float) -> bool:
    return used >= NEAR_SHARE * limit


def too_heavy(weighed: Iterable[Weighed], limit_bytes: int) -> list[Weighed]:
    """The largest processes whose ends bring the sum below the limit; empty when it is."""
    falling = sorted(weighed, key=lambda one: one.bytes, reverse=True)
    left = sum(one.bytes for one in falling)
    chosen: list[Weighed] = []
    for one in falling:
        if left <= limit_bytes:
            break
        chosen.append(one)
        left -= one.bytes
    return chosen


def busy(
    processes: Sequence[Process], cpu_before_s: Mapping[tuple[int, int], float], is_session: Callable[[Process], bool]
) -> list[Process]:
    """Those that a sandbox without CPU time left may not keep: all but shells and kernels that only wait."""
    return [
        process
        for process in processes
        if not process.is_ended
        and not (is_session(process) and process.cpu_s - cpu_before_s.get((process.pid, process.started), 0.0) < BUSY_CPU_S)
    ]


def writers(written: Mapping[Process, int | None], before: Mapping[tuple[int, int], int] | None) -> list[Process]:
    """Those that wrote to a disk since the look before; without one, those that ever wrote a mebibyte. Who hides it counts as one."""
    if before is None:
        return [process for process, count in written.items() if count is None or count >= MIB]
    return [process for process, count in written.items() if count is None or count > before.get((process.pid, process.started), 0)]


def over_by(named: DiskUse, with_deleted_bytes: int, limits: Limits) -> DiskCause:
    """Which bound on the disk is broken; empty when none is.

    Args:
        named: what can be counted from folders.
        with_deleted_bytes: as `named.bytes`, with deleted files that are still open.
    """
    if named.uncounted:
        return "depth"
    if named.files > limits.files:
        return "files"
    if named.bytes > limits.disk_bytes:
        return "bytes"
    return "deleted" if with_deleted_bytes > limits.disk_bytes else ""


def hides(process: Process, now_s: float, inside: Iterable[Process]) -> bool:
    """Whether one that nobody may look into is to be ended for it; one that is just entering cannot be looked into either.

    Args:
        now_s: since the machine booted.
        inside: the sandbox's own processes; who enters is the child of none of them.
    """
    age_s = now_s - process.started / TICKS_A_SECOND
    may_enter = age_s < ENTERING_S and all(process.parent != one.pid for one in inside)
    return not process.is_ended and not may_enter


def size_text(count: float) -> str:
    """A size for people: three digits and a unit."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}" if count / unit < 1000 else f"{count / unit:.0f} {name}"
    return f"{count:.0f} bytes"
