"""Bounds on a sandbox as a whole that the kernel keeps by namespace: set from inside, once, before anything of the sandbox runs.

    processes   `pid_max`: how many numbers its PID namespace gives out. Kernel 6.14 and later; before that it is the machine's, and refused
    watches     how much inotify may watch: the kernel counts it by user, so one sandbox could leave nothing to the others
    terminals   how many there are below /dev/pts: as `watches`
    ipc         what System V shared memory, semaphores and queues may take: they belong to no process, so nothing else counts them

1. A child of ours joins the namespaces of PID 1, a child of that writes: settings of a PID namespace are those of who is in it.
2. Then `/proc/sys` is mounted read-only over itself, for good. Without that a bound would hold nobody: bwrap maps the sandbox's own uid to
   0 of the namespace that owns the settings, and such a uid may write them without any capability. What could not be closed is not told
   as a bound. `/dev` is closed likewise: Apptainer leaves it writable, in memory, where as many empty files fit as the node has pages, and
   neither the disk's count nor anybody's memory would have them.
3. The settings of IPC are for uid 0 of the namespace alone. Apptainer has none: then an IPC namespace is made that has one, and entered
   in place of PID 1's, which nothing lives in.
4. PID 1 is a program of the image and may be against us: it sees one process come and go, which holds no rights over anything but the
   sandbox; and it can hold that up, which ends the try.

Standard library only; Linux only.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping

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
WATCHES = {"user/max_inotify_instances": "32", "user/max_inotify_watches": "32768"}
"""Of a user who has 128 instances where nobody changed it; an editor or a test runner takes a few."""
SETTINGS, DEVICES, TERMINALS = "/proc/sys", "/dev", "/dev/pts"
TERMINALS_MOUNTED = b"mode=620,ptmxmode=666,max=128"
"""A node has some 3,000 for all sandboxes together. Tools that run programs under a terminal have a few."""
TIMEOUT_S = 10.0
"""It takes 3 ms; PID 1 is a program of the image, and could hold up who comes into its namespace."""
CLONE_NEWIPC = 0x08000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 0x1, 0x2, 0x4, 0x8, 0x20, 0x1000


def bound(namespaces: entering.Namespaces, processes: int, *, entered: bool = True) -> list[str]:
    """Sets them, and returns which hold. Where the kernel refuses one, the others hold all the same.

    Args:
        processes: how many processes and threads the sandbox may have; the kernel's bound lies up to `RESERVED_NUMBERS` above.
        entered: what runs in the sandbox enters `namespaces`; else it is PID 1's, with PID 1's namespaces as they are.
    """
    heard, _ = _in_a_child(lambda answer: _enter_and_set(namespaces, processes, answer), packets=2)
    if not heard:
        return []
    bounds: list[str] = json.loads(heard[0])
    if "ipc" not in bounds and entered:
        _, made = _in_a_child(lambda answer: _make_ipc(namespaces, answer), packets=1)
        if made:
            namespaces.replace("ipc", made[0])
            bounds.append("ipc")
    return bounds


def _in_a_child(work: Callable[[socket.socket], None], packets: int) -> tuple[list[bytes], list[int]]:
    """What a child of ours says, and the descriptors it hands over; nothing when it does not say all of it, or not in time."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            work(theirs)
        except OSError:
            os._exit(1)  # who waits for the answer sees that there is none
        finally:
            os._exit(0)
    theirs.close()
    heard: list[bytes] = []
    descriptors: list[int] = []
    with ours:
        ours.settimeout(TIMEOUT_S)
        try:
            while len(heard) < packets:
                packet, received, _, _ = socket.recv_fds(ours, 1024, 1)
                for descriptor in received:
                    os.set_inheritable(descriptor, False)
                descriptors += received
                if not packet:
                    break
                heard.append(packet)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if len(heard) == packets:
        return heard, descriptors
    for descriptor in descriptors:
        os.close(descriptor)
    return [], []


def _enter_and_set(namespaces: entering.Namespaces, processes: int, answer: socket.socket) -> None:
    """Two packets: what was set, by a grandchild; then that nobody can change it any more, nor `/dev`."""
    entering.hide()
    entering.forbid_imports()
    namespaces.join(("ipc", "pid", "mnt"))
    inside = os.fork()
    if inside == 0:
        becoming.prctl(becoming.PR_SET_PDEATHSIG, signal.SIGKILL)
        tries = {"processes": {"kernel/pid_max": f"{RESERVED_NUMBERS + processes}"}, "ipc": IPC, "watches": WATCHES}
        answer.send(json.dumps([name for name, values in tries.items() if _write(values)]).encode())
        os._exit(0)
    os.waitpid(inside, 0)
    _seal()
    answer.send(b"sealed")


def _make_ipc(namespaces: entering.Namespaces, answer: socket.socket) -> None:
    """One packet with an IPC namespace, bounded, whose user namespace is one of ours below the sandbox's. PID 1 sees nothing of this."""
    uid = os.geteuid()
    namespaces.join(())
    _check(_libc.unshare(entering.CLONE_NEWUSER | CLONE_NEWIPC), "an IPC namespace")
    _put("/proc/self/uid_map", f"0 {uid} 1")
    if _write(IPC):
        socket.send_fds(answer, [b"made"], [os.open("/proc/self/ns/ipc", os.O_RDONLY)])


def _write(values: Mapping[str, str]) -> bool:
    """Whether all could be set. No text files: their codec may not be loaded yet, and nothing can be any more."""
    try:
        for name, value in values.items():
            _put(f"{SETTINGS}/{name}", value)
    except OSError:
        return False
    return True


def _put(path: str, value: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _seal() -> None:
    where = SETTINGS.encode()
    flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_REMOUNT | MS_BIND
    _check(_libc.mount(where, where, None, MS_BIND, None), "a mount of the settings")
    _check(_libc.mount(None, where, None, flags, None), "settings that are only read")
    if os.stat(DEVICES).st_dev != os.stat("/").st_dev:
        kept = os.statvfs(DEVICES).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
        _check(_libc.mount(None, DEVICES.encode(), None, kept | MS_RDONLY | MS_REMOUNT | MS_BIND, None), "devices that are only used")
    if os.stat(TERMINALS).st_dev != os.stat(DEVICES).st_dev:
        kept = os.statvfs(TERMINALS).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
        _check(_libc.mount(None, TERMINALS.encode(), None, kept | MS_REMOUNT, TERMINALS_MOUNTED), "as many terminals as a sandbox may have")


def _check(answer: int, what: str) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


_libc = ctypes.CDLL(None, use_errno=True)
