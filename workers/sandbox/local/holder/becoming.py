"""What a forked child does to itself until it is the program that was asked for. Standard library only.

It tells what kept it from that through a pipe which closes as the program starts: an empty pipe is success.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import Any

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
LINUX = sys.platform == "linux"
PARKING_FD = 256
"""Descriptors are moved up here before they are put in their places, so that no place is overwritten before it is read."""

LIMITS = {
    "cpu_s": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_DATA,
    "file_bytes": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
}

COUNTED_BY_USER = {"RLIMIT_MSGQUEUE": 16 * 1024, "RLIMIT_SIGPENDING": 1024}
"""What the kernel has one account of a user for, and all sandboxes of a node are of one: bytes of POSIX message queues (a user has 819,200)
and queued signals. So low that fifty sandboxes leave others some."""

_libc = ctypes.CDLL(None, use_errno=True) if LINUX else None


def prctl(option: int, value: Any) -> None:
    if _libc is not None:
        _libc.prctl(option, value, 0, 0, 0)


def follow(parent: int) -> None:
    """Has the kernel kill this process when `parent`, which forked it, ends; also when that has ended already."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(125)


def enter(folder: str) -> None:
    """Like chdir, with an error that cannot be taken for one about the program."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise OSError(error.errno, f"folder {folder}: {error.strerror}") from error


def default_signals() -> None:
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def join_groups(entries: Iterable[str]) -> None:
    """Moves this process into control groups, before it has used anything; what it starts is in them too.

    Args:
        entries: their files `cgroup.procs`.

    Raises:
        OSError: the first that did not take it.
    """
    for entry in entries:
        try:
            descriptor = os.open(entry, os.O_WRONLY)
            try:
                os.write(descriptor, b"0")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise OSError(error.errno, f"control group {entry}: {error.strerror}") from error


def set_oom_score() -> None:
    """When memory runs out the sandbox goes first, not the worker."""
    if LINUX:
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")


def put_in_place(places: Mapping[int, int], error_pipe: int) -> int:
    """Gives the descriptors the numbers the program is to see them by; returns the error pipe, out of their way."""
    error_pipe = fcntl.fcntl(error_pipe, fcntl.F_DUPFD_CLOEXEC, PARKING_FD)
    parked = {place: fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, PARKING_FD) for place, number in places.items()}
    for place, number in parked.items():
        os.dup2(number, place, inheritable=True)
    return error_pipe


def tell(error_pipe: int, error: OSError) -> None:
    os.write(error_pipe, f"{error.errno} {error.strerror}".encode())


def hear(error_pipe: int) -> None:
    """Waits until the child has become the program; raises what kept it from that."""
    problem = b""
    while piece := os.read(error_pipe, 4096):
        problem += piece
    if problem:
        code, _, text = problem.decode().partition(" ")
        raise OSError(int(code), text)


def become(argv: list[str], env: Mapping[str, str]) -> None:
    """As `execvpe`, which may import a module of the path it finds: the sandbox's, by now."""
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)
    problem: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for folder in env.get("PATH", os.defpath).split(":"):
        try:
            os.execve(f"{folder or '.'}/{argv[0]}", argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problem = error
    raise problem
