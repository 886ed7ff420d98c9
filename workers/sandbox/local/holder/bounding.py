"""Bounds on a sandbox as a whole that the kernel keeps by namespace: set from inside, once, before anything of the sandbox runs.

    processes   `pid_max`: how many numbers its PID namespace gives out. Kernel 6.14 and later; before that it is the machine's, and refused
    ipc         what System V shared memory, semaphores and queues may take: they belong to no process, so nothing else counts them

1. A child of ours joins the namespaces of PID 1, a child of that writes: settings of a PID namespace are those of who is in it.
2. Then `/proc/sys` is mounted read-only over itself, for good. Without that a bound would hold nobody: bwrap maps the sandbox's own uid to
   0 of the namespace that owns the settings, and such a uid may write them without any capability. What could not be closed is not told
   as a bound.
3. The settings of IPC are for uid 0 of the namespace alone. Apptainer has none: then an IPC namespace is made that has one, and entered
   in place of PID 1's, which nothing lives in.

Standard library only; Linux only.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from . import becoming, entering

RESERVED_NUMBERS = 300
"""The kernel leaves so many unused when it begins again from below, and takes no smaller bound."""
SHARED_BYTES = 64 * 1024 * 1024
"""System V shared memory of one sandbox: servers of data bases want some bytes of it, the rest of the world maps files."""
IPC = {
    "kernel/shmmax": f"{SHARED_BYTES}",
    "kernel/shmall": f"{SHARED_BYTES // os.sysconf('SC_PAGE_SIZE')}",
    "kernel/shmmni": "128",
    "kernel/sem": "250 8000 100 128",
    "kernel/msgmni": "32",
}
SETTINGS = "/proc/sys"
TIMEOUT_S = 10.0
"""It takes 3 ms; PID 1 is a program of the image, and could hold up who comes into its namespace."""
CLONE_NEWIPC = 0x08000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 0x1, 0x2, 0x4, 0x8, 0x20, 0x1000


@dataclass(frozen=True)
class Bounds:
    """What holds."""

    processes: bool = False
    ipc: bool = False


def bound(namespaces: entering.Namespaces, processes: int) -> Bounds:
    """Sets them; where the kernel refuses one, the others hold all the same.

    Args:
        processes: how many processes and threads the sandbox may have; the kernel's bound lies up to `RESERVED_NUMBERS` above.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    between = os.fork()
    if between == 0:
        try:
            ours.close()
            _enter_and_set(namespaces, processes, theirs)
        finally:
            os._exit(1)
    theirs.close()
    with ours:
        ours.settimeout(TIMEOUT_S)
        told, descriptors, sealed = b"", [], b""
        try:
            told, descriptors, _, _ = socket.recv_fds(ours, 1024, 1)
            sealed = ours.recv(16)
        except OSError:  # it is held up, or PID 1 ended: what was told so far holds nobody
            os.kill(between, signal.SIGKILL)
    os.waitpid(between, 0)
    if not told or not sealed:
        for descriptor in descriptors:
            os.close(descriptor)
        return Bounds()
    for descriptor in descriptors:
        namespaces.replace("ipc", descriptor)
    return Bounds(**json.loads(told))


def _enter_and_set(namespaces: entering.Namespaces, processes: int, answer: socket.socket) -> None:
    """Two packets: what was set, with an IPC namespace where one was made; then that nobody can change it any more."""
    entering.hide()
    entering.forbid_imports()
    namespaces.join()
    inside = os.fork()
    if inside == 0:
        becoming.prctl(becoming.PR_SET_PDEATHSIG, signal.SIGKILL)
        entering.hide()
        bounded = {"processes": _write({"kernel/pid_max": str(RESERVED_NUMBERS + processes)}), "ipc": _write(IPC)}
        made = []
        if not bounded["ipc"]:
            bounded["ipc"] = _own_ipc() and _write(IPC)
            made = [os.open("/proc/self/ns/ipc", os.O_RDONLY)] if bounded["ipc"] else []
        socket.send_fds(answer, [json.dumps(bounded).encode()], made)
        os._exit(0)
    _, status = os.waitpid(inside, 0)
    if status == 0 and _seal():
        answer.send(b"sealed")
        os._exit(0)


def _own_ipc() -> bool:
    """Moves into an IPC namespace that belongs to a user namespace in which this process is uid 0."""
    uid = os.geteuid()
    if _libc.unshare(entering.CLONE_NEWUSER | CLONE_NEWIPC) != 0:
        return False
    try:
        with open("/proc/self/uid_map", "w", encoding="ascii") as file:
            file.write(f"0 {uid} 1")
    except OSError:
        return False
    return True


def _write(values: Mapping[str, str]) -> bool:
    """Whether all could be set."""
    for name, value in values.items():
        try:
            with open(f"{SETTINGS}/{name}", "w", encoding="ascii") as file:
                file.write(value)
        except OSError:
            return False
    return True


def _seal() -> bool:
    where = SETTINGS.encode()
    flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_REMOUNT | MS_BIND
    return _libc.mount(where, where, None, MS_BIND, None) == 0 and _libc.mount(None, where, None, flags, None) == 0


_libc = ctypes.CDLL(None, use_errno=True)
