"""Which calls of the kernel a sandbox may not make: a seccomp filter, as bytes of `struct sock_filter`.

A deny list, so that programs run as anywhere else. On it is what only serves to rebuild a system (mounts, namespaces, modules), to look
into other processes, or what is known for its holes and needed by no task (io_uring, bpf, perf, keyrings, userfaultfd), and every family of
sockets but Unix, IP and netlink: vsock, for one, does not care for network namespaces. What is denied answers EPERM, as without rights,
except where a library falls back on ENOSYS. `strace` and `gdb` do not work behind it. To hide from others of one's own user
(`PR_SET_DUMPABLE`) answers that it was done, and is not: the watchdog counts what a process holds open, and writes.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FIRST_ARGUMENT = 0, 4, 16
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID and NET."""
_ALLOWED_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""
_X32 = 0x40000000
_SET_DUMPABLE = 4

_NEWER = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "quotactl_fd": 443,
}
"""Numbers that are the same everywhere."""
_X86_64 = {
    "ptrace": 101,
    "syslog": 103,
    "vhangup": 153,
    "modify_ldt": 154,
    "pivot_root": 155,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "perf_event_open": 298,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
}
_AARCH64 = {
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "chroot": 51,
    "vhangup": 58,
    "quotactl": 60,
    "acct": 89,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "syslog": 116,
    "ptrace": 117,
    "reboot": 142,
    "sethostname": 161,
    "setdomainname": 162,
    "settimeofday": 170,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "swapon": 224,
    "swapoff": 225,
    "perf_event_open": 241,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    architecture: int
    denied: frozenset[int]
    clone: int
    clone3: int
    prctl: int
    socket: int
    x32: bool


_MACHINES = {
    "x86_64": _Machine(
        architecture=0xC000003E,
        denied=frozenset({*_X86_64.values(), *_NEWER.values()}),
        clone=56,
        clone3=435,
        prctl=157,
        socket=41,
        x32=True,
    ),
    "aarch64": _Machine(
        architecture=0xC00000B7,
        denied=frozenset({*_AARCH64.values(), *_NEWER.values()}),
        clone=220,
        clone3=435,
        prctl=167,
        socket=198,
        x32=False,
    ),
}


def seccomp_filter(machine: str = "", *, may_hide: bool = False) -> bytes:
    """The filter for a machine, by default this one; empty where we do not know its numbers of calls.

    Args:
        may_hide: for PID 1, which may be a program of ours with something to hide.
    """
    known = _MACHINES.get(machine or platform.machine())
    if known is None:
        return b""
    steps = [
        _step(_LOAD, _AT_ARCHITECTURE),
        _step(_JUMP_EQUAL, known.architecture, 1, 0),
        _deny(errno.ENOSYS),  # a call by another machine's numbers, such as those of 32 bits
        _step(_LOAD, _AT_NUMBER),
    ]
    if known.x32:
        steps += [_step(_JUMP_AT_LEAST, _X32, 0, 1), _deny(errno.ENOSYS)]
    steps += [_step(_JUMP_EQUAL, known.clone3, 0, 1), _deny(errno.ENOSYS)]  # its flags lie in memory, where no filter sees them
    for number in sorted(known.denied):
        steps += [_step(_JUMP_EQUAL, number, 0, 1), _deny(errno.EPERM)]
    steps += [
        _step(_JUMP_EQUAL, known.clone, 0, 4),
        _step(_LOAD, _AT_FIRST_ARGUMENT),
        _step(_JUMP_BITS, _NEW_NAMESPACES, 0, 1),
        _deny(errno.EPERM),
        _step(_RETURN, _ALLOW),
    ]
    if not may_hide:
        steps += [
            _step(_JUMP_EQUAL, known.prctl, 0, 4),
            _step(_LOAD, _AT_FIRST_ARGUMENT),
            _step(_JUMP_EQUAL, _SET_DUMPABLE, 0, 1),
            _deny(0),
            _step(_RETURN, _ALLOW),
        ]
    steps += [
        _step(_JUMP_EQUAL, known.socket, 1, 0),
        _step(_RETURN, _ALLOW),
        _step(_LOAD, _AT_FIRST_ARGUMENT),
    ]
    for family in _ALLOWED_FAMILIES:
        steps += [_step(_JUMP_EQUAL, family, 0, 1), _step(_RETURN, _ALLOW)]
    steps.append(_deny(errno.EAFNOSUPPORT))
    return b"".join(steps)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _deny(number: int) -> bytes:
    return _step(_RETURN, _ERRNO | number)
