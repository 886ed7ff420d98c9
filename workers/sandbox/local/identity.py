"""Which process is meant: a number alone may belong to another by now, so it goes with the moment that process started.

A process has ended when none of its threads can ever run again, whoever is to read its exit code and does not: where the first process of a
container is no init, nobody reads that of an orphan. On Linux that is told by two things beside its state:

- The first thread of a process may have ended, and its state be that of a zombie, while others run.
- PID 1 of a namespace of processes, once killed, waits in the kernel until the exit codes of all others there were read. Its memory, its
  files and its mounts are gone by then; what waits is a number.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal as signals
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

LINUX = sys.platform == "linux"
ENDED_STATES = frozenset({b"Z", b"X", b"x"})
PF_EXITING = 4
LOOK_AGAIN_S = 0.05
"""The end of a PID 1 that waits for others wakes nobody, so one looks again."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of this boot of the machine."""

    pid: int
    started: int
    """Linux: clock ticks since boot (field 22 of /proc/PID/stat); elsewhere microseconds since the epoch."""


@cache
def machine_boot() -> str:
    """Names this boot: process identities of an earlier one mean nothing."""
    if LINUX:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return str(int(psutil.boot_time()))


def identify(pid: int) -> ProcessIdentity | None:
    """The process that has this number now; None when none has, or only its exit code is left."""
    if LINUX:
        try:
            words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return None
        has_ended = int(words[17]) <= 1 if words[0] in ENDED_STATES else bool(int(words[6]) & PF_EXITING) and not _has_mounts(pid)
        return None if has_ended else ProcessIdentity(pid, int(words[19]))
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else ProcessIdentity(pid, int(process.create_time() * 1e6))
    except psutil.Error:
        return None


def _has_mounts(pid: int) -> bool:
    """Whether the kernel has not yet taken away from a process what is taken last."""
    try:
        os.close(os.open(f"/proc/{pid}/mountinfo", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in (errno.EINVAL, errno.ENOENT, errno.ESRCH)
    return True


def is_running(process: ProcessIdentity) -> bool:
    return identify(process.pid) == process


def send_signal(process: ProcessIdentity, number: int) -> bool:
    """Signals that process and no other; False when it has ended."""
    if not LINUX:
        if not is_running(process):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
            return True
        return False
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not is_running(process):
            return False
        signals.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def wait_ended(processes: Iterable[ProcessIdentity], timeout_s: float) -> list[ProcessIdentity]:
    """Blocks until all have ended or the time is up; returns those that still run. For a thread, not for the event loop."""
    deadline = time.monotonic() + timeout_s
    left = [process for process in processes if is_running(process)]
    while left and (remaining := deadline - time.monotonic()) > 0:
        _wait_for_one(left[0], min(remaining, LOOK_AGAIN_S))
        left = [process for process in left if is_running(process)]
    return left


def marked_processes(variable: str, value: str) -> list[ProcessIdentity]:
    """Processes that were started with this variable in their environment, as far as we may look."""
    if not LINUX:
        carriers = [process.pid for process in psutil.process_iter() if _has_variable(process, variable, value)]
        return [process for pid in carriers if (process := identify(pid))]
    mark = f"{variable}={value}".encode()
    found: list[ProcessIdentity] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") and (process := identify(int(name))):
                    found.append(process)
    return found


def recorded_processes(lines: Sequence[str]) -> list[ProcessIdentity]:
    """Reads lines `PID STARTED` and keeps those that still run; damaged lines are skipped, the last one may be half written."""
    found: list[ProcessIdentity] = []
    for line in lines:
        with contextlib.suppress(ValueError):
            pid, started = map(int, line.split())
            process = ProcessIdentity(pid, started)
            if is_running(process):
                found.append(process)
    return found


def _wait_for_one(process: ProcessIdentity, timeout_s: float) -> None:
    if LINUX:
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            return
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(max(1, int(timeout_s * 1000)))
        finally:
            os.close(descriptor)
        return
    with contextlib.suppress(psutil.Error):
        psutil.Process(process.pid).wait(timeout_s)


def _has_variable(process: psutil.Process, variable: str, value: str) -> bool:
    try:
        return bool(process.environ().get(variable) == value)
    except psutil.Error:
        return False
