"""To enter a sandbox: to become, from outside, a process inside its namespaces. Standard library only;
imports nothing of this package, since others load it by path.

1. A mount namespace is joined by who has rights over it, and these come with the user namespace that owns it. bwrap puts PID 1 into another
   user namespace inside that one, so the owner is joined first, then all others, then PID 1's own.
2. The namespaces are held by descriptors from one look at PID 1 on: its number may be another's later, they cannot be.
3. Joining a user namespace gives every capability in it. They are dropped, for good, before anything of the sandbox runs.
4. From the join of the mount namespace on, every path is the sandbox's: nothing is imported after it (`forbid_imports`).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
from collections.abc import Sequence

KINDS = {
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "net": 0x40000000,
    "pid": 0x20000000,
    "cgroup": 0x02000000,
    "mnt": 0x00020000,
}
"""Everything of PID 1 that is joined, in this order; user namespaces are a matter of their own."""
CLONE_NEWUSER = 0x10000000
NS_GET_USERNS = 0xB701
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 4, 22, 23, 24, 38, 47
PR_CAP_AMBIENT_CLEAR_ALL, SECCOMP_MODE_FILTER = 4, 2
CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


class Namespaces:
    """The namespaces of one sandbox, held open."""

    def __init__(self, keeper: int) -> None:
        self.user = os.open(f"/proc/{keeper}/ns/user", os.O_RDONLY)
        self.held = {kind: os.open(f"/proc/{keeper}/ns/{kind}", os.O_RDONLY) for kind in KINDS}
        self.root = os.open(f"/proc/{keeper}/root", os.O_PATH | os.O_DIRECTORY)
        self.owner = fcntl.ioctl(self.held["mnt"], NS_GET_USERNS)
        os.set_inheritable(self.owner, False)
        self.ours = {kind: os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("user", *KINDS)}  # not to be asked for any more inside

    @property
    def pid_namespace(self) -> int:
        """The inode that names the PID namespace, as in `/proc/PID/ns/pid`."""
        return os.fstat(self.held["pid"]).st_ino

    def join(self, kinds: Sequence[str] = tuple(KINDS)) -> None:
        """Joins these, in their order. Afterwards `/` is the sandbox's, and a forked child is in its PID namespace.

        Raises:
            OSError: says which one did not let us in.
        """
        if not self._is_ours(self.owner, "user"):
            _check(_libc.setns(self.owner, CLONE_NEWUSER), "user namespace of the mounts")
        for kind in kinds:
            if not self._is_ours(self.held[kind], kind):
                _check(_libc.setns(self.held[kind], KINDS[kind]), f"{kind} namespace")
        if "mnt" in kinds and not os.path.samestat(os.fstat(self.root), os.stat("/")):
            os.fchdir(self.root)
            os.chroot(".")
        if "mnt" in kinds:
            os.chdir("/")

    def replace(self, kind: str, descriptor: int) -> None:
        """Joins another from now on in place of PID 1's; the descriptor is ours to close."""
        os.close(self.held[kind])
        self.held[kind] = descriptor

    def join_user(self) -> None:
        """The last step: the user namespace of PID 1 itself."""
        if os.fstat(self.user).st_ino != os.fstat(self.owner).st_ino and not self._is_ours(self.user, "user"):
            _check(_libc.setns(self.user, CLONE_NEWUSER), "user namespace of PID 1")

    def _is_ours(self, descriptor: int, kind: str) -> bool:
        return os.fstat(descriptor).st_ino == self.ours[kind]

    def close(self) -> None:
        for descriptor in (self.user, self.root, self.owner, *self.held.values()):
            os.close(descriptor)


def hide() -> None:
    """Nobody inside may look into this process while it is on its way to become one of theirs: it holds what is ours."""
    _check(_libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "PR_SET_DUMPABLE")


def drop_privileges(seccomp: bytes = b"") -> None:
    """Gives up every capability and every way to get one; then the kernel's calls that the filter names.

    Who has none may not shorten the list of those that files could give him, and needs not: no file gives any after `no_new_privs`.

    Args:
        seccomp: a program of `struct sock_filter`; empty = no filter.
    """
    for capability in range(64) if _has_capabilities() else ():
        if _libc.prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1:
            _check(_libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), f"drop of capability {capability}")
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if seccomp:
        filters = ctypes.create_string_buffer(seccomp, len(seccomp))
        program = _Program(len(seccomp) // 8, ctypes.addressof(filters))
        _check(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp filter")


def _has_capabilities() -> bool:
    header, found = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capget(header, found), "capget")
    return bool(found[1] | found[4])  # what is permitted, by two words


def forbid_imports() -> None:
    """What was not loaded until now is never loaded: the files on the path are the sandbox's from here on."""
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filters", ctypes.c_void_p))


def _check(answer: int, what: str) -> None:
    if answer != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
