"""What is left of the sandboxes of a node, by what the kernel says, and by nothing that the product wrote down or marked.

A test adopts its node: it is the subreaper of all that it starts, so whatever is orphaned anywhere below becomes its child, in whatever
session, namespace or environment it hides. What runs of the node is therefore what runs below the test, and nothing can be missed.

    processes     all below the test, but those it says are the node's own (its service, its workers), and the one holder that a service
                  keeps ready: it has nothing below it and nothing of a sandbox open
    mounts        in the mount namespace of any process of this user: their sources lie below the node's folders
    descriptors   of the node's own processes: a file of a sandbox, a namespace, a device of FUSE, a socket of another network
    sockets       bound below the node's folders, or listening for the network
    files         below scratch and run, but the service's own
    cgroups       of a sandbox, or made by a process that has ended
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from workers.sandbox.local.folder import SANDBOX_ID
from workers.sandbox.local.identity import ProcessIdentity, identify

PR_SET_CHILD_SUBREAPER = 36
OWN_FILES = frozenset({"sandbox.sock", "sandbox.token", "sandbox.lock"})
"""Of a service."""
HOLDER = "/sandbox/local/holder"
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
LISTENING = "0A"


class Leftovers:
    """Looks after one node, from before its first process on.

    Args:
        place: a folder of the node's own.
        scratch: the name of its scratch folder in it; its run folder is `run`.
    """

    def __init__(self, place: Path, scratch: str = "s") -> None:
        self.place = place
        self._folders = (scratch, f"{scratch}/sandboxes", "run")
        self._word = str(place).encode()
        self._before = {identify(pid) for pid in _below(os.getpid())}
        self._own: set[ProcessIdentity] = set()

    @contextlib.contextmanager
    def adopting(self) -> Iterator[None]:
        """While the node lives: what loses its parent becomes a child of this process."""
        _subreaper(True)
        try:
            yield
        finally:
            _subreaper(False)

    def is_own(self, pid: int) -> int:
        """Takes note of a process of the node itself, which the test ends and reaps."""
        process = identify(pid)
        if process is not None:
            self._own.add(process)
        return pid

    def found(self) -> list[str]:
        """Everything that is left, each with where it was found."""
        return [*self.processes(), *self.mounts(), *self.descriptors(), *self.sockets(), *self.files(), *self.cgroups()]

    def processes(self) -> list[str]:
        """What runs below this process and is not the node's own."""
        self._reap()
        spares = self._spares()
        return [
            f"process {pid} {_name(pid)}: {_command(pid)}"
            for pid in _below(os.getpid())
            if pid not in spares and not self._is_known(pid) and not _has_ended(pid) and not self._counts_disks(pid)
        ]

    def mounts(self) -> list[str]:
        """What is mounted from or to the node's folders, for whoever it shows."""
        found: dict[str, int] = {}
        for pid in _pids():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                for line in Path(f"/proc/{pid}/mountinfo").read_bytes().splitlines():
                    if self._word in line:
                        found.setdefault(line.split()[4].decode(errors="replace"), pid)
        return [f"mount {point} seen by {pid} {_name(pid)}" for point, pid in found.items()]

    def descriptors(self) -> list[str]:
        """What the node's own processes hold open that belongs to a sandbox."""
        found = []
        for pid in self._living():
            sockets = _socket_numbers(pid)
            for number, target in _descriptors(pid):
                kind, _, rest = target.partition(":")
                below = target.removeprefix(f"{self.place}/") if target.startswith(f"{self.place}/") else ""
                is_of_a_sandbox = any(SANDBOX_ID.fullmatch(part.removeprefix(".trash-")) for part in below.split("/"))
                is_elsewhere = kind == "socket" and sockets is not None and rest.strip("[]") not in sockets
                if is_of_a_sandbox or kind in NAMESPACES or target.startswith("/dev/fuse") or is_elsewhere:
                    found.append(f"descriptor {number} of {pid} {_name(pid)}: {target}{' of another network' if is_elsewhere else ''}")
        return found

    def sockets(self) -> list[str]:
        """What is bound below the node's folders, and what of the node listens for the network."""
        found = []
        own = f"{self.place}/run/sandbox.sock"
        for line in Path("/proc/net/unix").read_text(errors="replace").splitlines():
            words = line.split(None, 7)
            path = words[7] if len(words) > 7 else ""
            if path.startswith(tuple(f"{self.place}/{folder}/" for folder in self._folders)) and path != own:
                found.append(f"socket {path}")
        for pid in self._living():
            listening = _listening(pid)
            found += [f"socket of {pid} {_name(pid)} that listens at {listening[n]}" for n in _socket_inodes(pid) if n in listening]
        return found

    def files(self) -> list[str]:
        """What lies in the node's folders; of a folder only its name."""
        found = []
        for folder in self._folders:
            with contextlib.suppress(FileNotFoundError):
                found += [f"{folder}/{name}" for name in os.listdir(self.place / folder) if name not in OWN_FILES]
        # workers keep what is theirs beside the sandboxes, by the name of their fleet
        theirs = [name for name in found if name.count("/") == 1 and name.startswith(self._folders[0]) and "/." not in name]
        return [f"file {name}" for name in found if name not in theirs]

    def cgroups(self) -> list[str]:
        """Control groups of sandboxes of the node's own processes, and those of one that has ended."""
        found = []
        for folder, names, _ in os.walk("/sys/fs/cgroup"):
            for name in list(names):
                made_by = re.fullmatch(r"rollstream-(\d+)-(\d+)-\d+", name)
                process = ProcessIdentity(int(made_by[1]), int(made_by[2])) if made_by is not None else None
                if process not in self._own:
                    continue
                if process.pid not in self._living():
                    found.append(f"cgroup {folder}/{name}")
                with contextlib.suppress(FileNotFoundError), os.scandir(f"{folder}/{name}") as inners:
                    found += [f"cgroup {inner.path}" for inner in inners if inner.is_dir()]
        return found

    def _spares(self) -> set[int]:
        """At most one child of each process of the node: a second one is a leftover."""
        parents = _parents()
        found: dict[int, int] = {}
        for pid in self._living():
            for child in (child for child, parent in parents.items() if parent == pid):
                holds = any(target.startswith(str(self.place)) for _, target in _descriptors(child))
                if HOLDER in _command(child) and child not in parents.values() and not holds:
                    found.setdefault(pid, child)
        return set(found.values())

    def _is_known(self, pid: int) -> bool:
        """By number and start: another may have the number by now."""
        process = identify(pid)
        return process in self._own or process in self._before

    def _counts_disks(self, pid: int) -> bool:
        """The one helper of a service that lives as long as it does: nothing of a sandbox, and left when the service is not there."""
        with contextlib.suppress(OSError):
            return _command(pid).endswith("limits/disk_counter.py") and _stat(pid)[1] in self._living()
        return False

    def _living(self) -> list[int]:
        return [process.pid for process in self._own if identify(process.pid) == process]

    def _awaited(self) -> set[int]:
        """Those whose exit codes the test reads otherwise: what was here before, and what it calls the node's own."""
        return {process.pid for process in (*self._own, *self._before) if process is not None}

    def _reap(self) -> None:
        """Takes in what we adopted and has ended: nobody else waits for it."""
        for pid in _children(os.getpid()):
            if _has_ended(pid) and pid not in self._awaited():
                with contextlib.suppress(ChildProcessError):
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def _subreaper(on: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this process cannot be a subreaper")


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> tuple[str, int, int]:
    """State, parent, and how many threads."""
    words = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return words[0].decode(), int(words[1]), int(words[17])


def _has_ended(pid: int) -> bool:
    try:
        words = _stat(pid)
    except OSError:
        return True
    return words[0] in "ZX" and words[2] <= 1  # its first thread may have ended, and others run


def _parents() -> dict[int, int]:
    found = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            found[pid] = _stat(pid)[1]
    return found


def _children(of: int) -> list[int]:
    return [pid for pid, parent in _parents().items() if parent == of]


def _below(root: int) -> list[int]:
    parents = _parents()
    found, queue = [], [root]
    while queue:
        above = queue.pop()
        below = [pid for pid, parent in parents.items() if parent == above]
        found += below
        queue += below
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "(ended)"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except OSError:
        return ""


def _descriptors(pid: int) -> Iterable[tuple[str, str]]:
    found = []
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.append((number, os.readlink(f"/proc/{pid}/fd/{number}")))
    return found


def _socket_inodes(pid: int) -> list[str]:
    return [target[8:-1] for _, target in _descriptors(pid) if target.startswith("socket:[")]


def _socket_numbers(pid: int) -> set[str] | None:
    """The inodes of all sockets of the network that a process is in; None when it has ended."""
    columns = {"unix": 6, "tcp": 9, "tcp6": 9, "udp": 9, "udp6": 9, "raw": 9, "netlink": 9, "packet": 8}
    found = set()
    try:
        for name, column in columns.items():
            with contextlib.suppress(FileNotFoundError):
                for line in Path(f"/proc/{pid}/net/{name}").read_text(errors="replace").splitlines()[1:]:
                    words = line.split()
                    if len(words) > column:
                        found.add(words[column])
    except OSError:
        return None
    return found if Path(f"/proc/{pid}/fd").exists() else None


def _listening(pid: int) -> dict[str, str]:
    """Sockets that listen for the network, by inode."""
    found = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENING:
                    found[words[9]] = f"{name} {words[1]}"
    return found
