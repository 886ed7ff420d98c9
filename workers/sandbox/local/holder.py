"""The process under which everything of one attachment runs: `python -I -S holder.py LIBRARY WORKER_PID LEASE_FD CHILDREN_FILE`.

    worker ── control socket (our fd 0) ──> holder ──> bash, kernels, commands ──> whatever those start
                                              └─ holds the lease: LEASE_FD, a descriptor with a flock, never handed to children

1. Everything started here stays below us: we are a subreaper (Linux), so what daemonises is re-parented to us, not to PID 1.
2. The control socket closes when the worker ends, however it ends. Then, and on `stop`, and on SIGTERM, we kill all descendants and
   exit only when none is left; so a free lease means that nothing of the attachment runs.
3. We reap every child, ours and adopted, and nobody else's exit code: no other code waits in this process.
4. Should we be killed ourselves, the children get SIGKILL from the kernel (PR_SET_PDEATHSIG); who looks for the rest finds them by the
   children file and by the mark in their environment.

One thread, standard library, and `ptyprocess` for terminals (its folder is LIBRARY); imports nothing of Rollstream.
Without /proc (macOS) there is no subreaper: process groups are killed, and a daemon that left its group escapes.

Frames both ways: length (4 bytes, big endian), JSON; descriptors travel beside the first byte of their frame.
    {"op": "spawn"|"pty", "id", "argv", "env", "cwd", "fds": [numbers], "limits": {...}, "rows", "columns"}
                                                       -> {"id", "pid", "fds"} or {"id", "errno", "error"}
    {"op": "kill", "pid", "signal", "scope"}           no answer
    {"op": "stop", "grace_s"}                          -> {"event": "stopped"}, then the end
    {"event": "ready"}, {"event": "exit", "pid", "code"}
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
LINUX = sys.platform == "linux"
PARKING_FD = 256
"""Descriptors are moved up here before they are put in their places, so that no place is overwritten before it is read."""
RESCAN_MAX_S = 0.05

LIMITS = {
    "cpu_s": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_DATA,
    "file_bytes": resource.RLIMIT_FSIZE,
    "open_files": resource.RLIMIT_NOFILE,
}

_libc = ctypes.CDLL(None, use_errno=True) if LINUX else None


def prctl(option: int, value: Any) -> None:
    if _libc is not None:
        _libc.prctl(option, value, 0, 0, 0)


class Process:
    """One line of the process table."""

    __slots__ = ("group", "parent", "pid", "session", "started", "state")

    def __init__(self, pid: int) -> None:
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
        self.pid = pid
        self.state, self.started = words[0], int(words[19])
        self.parent, self.group, self.session = int(words[1]), int(words[2]), int(words[3])


def enter(folder: str) -> None:
    """Like chdir, with an error that cannot be taken for one about the program."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise OSError(error.errno, f"folder {folder}: {error.strerror}") from error


def process_table() -> list[Process]:
    table = []
    for name in os.listdir("/proc") if LINUX else ():
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):  # it ended while we looked
                table.append(Process(int(name)))
    return table


def below(root: int, table: list[Process]) -> list[Process]:
    """All descendants of a process, without itself."""
    children: dict[int, list[Process]] = {}
    for process in table:
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    queue = [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            found.append(child)
            queue.append(child.pid)
    return found


def signal_exactly(process: Process, number: int) -> None:
    """Signals that very process, not one that got its number since."""
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if Process(process.pid).started == process.started:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


class Holder:
    """The loop: requests from the worker, ends of children."""

    def __init__(self, library: str, worker_pid: int, children_file: str) -> None:
        self.pid = os.getpid()
        self.library = library
        self.control = socket.socket(fileno=os.dup(0))
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.close(null)
        self.children_log = open(children_file, "a", encoding="ascii")  # noqa: SIM115  # open as long as we live
        self.children: set[int] = set()
        self.received = bytearray()
        self.descriptors: list[int] = []
        self.stopping: float | None = None
        self.wake, wake_write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self.on_sigterm)
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
            signal.signal(ignored, signal.SIG_IGN)
        prctl(PR_SET_NAME, b"rs-holder")
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.worker = -1
        if LINUX:  # beside the socket's end: a process forked from the worker may hold a copy of its side
            with contextlib.suppress(OSError):
                self.worker = os.pidfd_open(worker_pid)
            if os.getppid() != worker_pid:
                self.stopping = 0.0

    def on_sigterm(self, *_: object) -> None:
        if self.stopping is None:
            self.stopping = 0.0

    def run(self) -> None:
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        if self.worker >= 0:
            poll.register(self.worker, select.POLLIN)
        self.send({"event": "ready"})
        while self.stopping is None:
            for descriptor, _ in poll.poll():
                if descriptor == self.control.fileno():
                    self.read_requests()
                elif descriptor == self.wake:
                    self.clear_wake()
                    self.reap()
                else:
                    self.stopping = 0.0
        self.end_everything(self.stopping)
        self.send({"event": "stopped"})

    def read_requests(self) -> None:
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        try:
            data, ancillary, _, _ = self.control.recvmsg(65536, socket.CMSG_SPACE(16 * 4), flags)
        except OSError:
            data, ancillary = b"", []
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(payload[: len(payload) // 4 * 4])
                for number in numbers:
                    os.set_inheritable(number, False)
                    self.descriptors.append(number)
        if not data:
            self.stopping = 0.0
            return
        self.received += data
        while len(self.received) >= 4:
            (length,) = struct.unpack_from(">I", self.received)
            if len(self.received) < 4 + length:
                return
            request = json.loads(self.received[4 : 4 + length])
            del self.received[: 4 + length]
            self.answer(request)

    def answer(self, request: dict[str, Any]) -> None:
        operation = request["op"]
        if operation == "kill":
            self.kill(request["pid"], request["signal"], request["scope"])
        elif operation == "stop":
            self.stopping = request["grace_s"]
        else:
            count = len(request["fds"])
            given, self.descriptors = self.descriptors[:count], self.descriptors[count:]
            try:
                pid, terminal = (self.spawn if operation == "spawn" else self.spawn_pty)(request, given)
            except OSError as error:
                self.send({"id": request["id"], "errno": error.errno or errno.EIO, "error": error.strerror or str(error)})
                return
            finally:
                for number in given:
                    os.close(number)
            self.children.add(pid)
            if LINUX:
                with contextlib.suppress(OSError):
                    self.children_log.write(f"{pid} {Process(pid).started}\n")
                    self.children_log.flush()
            self.send({"id": request["id"], "pid": pid, "fds": int(terminal >= 0)}, terminal)
            if terminal >= 0:
                os.close(terminal)

    def send(self, frame: dict[str, Any], descriptor: int = -1) -> None:
        payload = json.dumps(frame).encode()
        data = struct.pack(">I", len(payload)) + payload
        with contextlib.suppress(OSError):  # the worker ended: the loop will see it
            if descriptor >= 0:
                rights = array.array("i", [descriptor])
                sent = self.control.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                data = data[sent:]
            self.control.sendall(data)

    # -- starting ---------------------------------------------------------------------------------------------------------------

    def prepare(self, request: dict[str, Any]) -> Callable[[], None]:
        """What a new child does to itself just before it becomes the program."""
        parent = os.getpid()

        def in_the_child() -> None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(125)
            for number in range(1, signal.NSIG):
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.umask(0o022)
            if LINUX:
                with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                    file.write("1000")  # when memory runs out the sandbox goes first, not the worker
            limits = request["limits"]
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            for name, kind in LIMITS.items():
                hard = resource.getrlimit(kind)[1]
                wanted = limits[name] if hard == resource.RLIM_INFINITY else min(limits[name], hard)
                with contextlib.suppress(OSError, ValueError):  # macOS refuses some
                    resource.setrlimit(kind, (wanted, wanted))
            with contextlib.suppress(OSError):
                os.nice(limits["nice"])

        return in_the_child

    def spawn(self, request: dict[str, Any], given: list[int]) -> tuple[int, int]:
        prepare = self.prepare(request)
        error_read, error_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                enter(request["cwd"])
                error_write = fcntl.fcntl(error_write, fcntl.F_DUPFD_CLOEXEC, PARKING_FD)
                parked = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, PARKING_FD) for number in given]
                for source, place in zip(parked, request["fds"], strict=True):
                    os.dup2(source, place, inheritable=True)
                prepare()
                os.execvpe(request["argv"][0], request["argv"], request["env"])
            except OSError as error:
                os.write(error_write, f"{error.errno} {error.strerror}".encode())
            finally:
                os._exit(126)
        os.close(error_write)
        with open(error_read, "rb") as pipe:
            problem = pipe.read()
        if problem:
            os.waitpid(pid, 0)
            code, _, text = problem.decode().partition(" ")
            raise OSError(int(code), text)
        return pid, -1

    def spawn_pty(self, request: dict[str, Any], given: list[int]) -> tuple[int, int]:
        if self.library not in sys.path:
            sys.path.append(self.library)
        from ptyprocess import PtyProcess

        places = request["fds"]
        parked: list[int] = []
        try:
            for number, place in zip(given, places, strict=True):
                os.dup2(number, place, inheritable=False)
                parked.append(place)
            os.environ["PATH"] = request["env"].get("PATH", os.defpath)  # where ptyprocess looks for the program
            prepare = self.prepare(request)

            def in_the_child() -> None:
                enter(request["cwd"])
                prepare()
                for place in places:
                    os.set_inheritable(place, True)

            terminal = PtyProcess.spawn(
                request["argv"],
                env=request["env"],
                echo=False,
                preexec_fn=in_the_child,
                dimensions=(request["rows"], request["columns"]),
                pass_fds=places,
            )
        except Exception as error:  # ptyprocess hands on the child's by name and text
            raise OSError(getattr(error, "errno", None) or errno.ENOENT, str(error)) from error
        finally:
            if os.getpid() != self.pid:
                os._exit(126)  # an exception of the child that ptyprocess let through: there must not be two of us
            for place in parked:
                os.close(place)
        master = os.dup(terminal.fd)
        terminal.fileobj.close()  # its destructor closes a descriptor by number otherwise, which may be another's by then
        terminal.closed, terminal.fd = True, -1
        return terminal.pid, master

    # -- ending -----------------------------------------------------------------------------------------------------------------

    def clear_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake, 4096):
                pass

    def reap(self) -> bool:
        """Takes in what has ended; False when no child is left, living or dead."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid in self.children:
                self.children.discard(pid)
                self.send({"event": "exit", "pid": pid, "code": os.waitstatus_to_exitcode(status)})

    def kill(self, pid: int, number: int, scope: str) -> None:
        if scope == "tree":
            self.kill_tree(pid, number)
        elif scope == "others":
            for process in process_table():
                if process.group == pid and process.pid != pid:
                    signal_exactly(process, number)
        elif pid in self.children:  # not reaped yet, so the number is still its own
            with contextlib.suppress(OSError):
                os.killpg(pid, number)

    def kill_tree(self, root: int, number: int) -> None:
        """A child, its descendants and its session, again and again until a look finds none."""
        if not LINUX:
            with contextlib.suppress(OSError):
                os.killpg(root, number)
            return
        known = {root}
        pause = 0.001
        for _ in range(20):
            table = process_table()
            mine = [process for process in below(self.pid, table) if process.session == root or process.pid in known]
            mine += [process for process in below(root, table) if process not in mine]
            alive = [process for process in mine if process.state not in (b"Z", b"X")]
            if not alive:
                break
            known.update(process.pid for process in mine)
            self.kill_all_of(alive, number)
            if number != signal.SIGKILL:
                break
            select.select([self.wake], [], [], pause)
            self.clear_wake()
            self.reap()
            pause = min(2 * pause, RESCAN_MAX_S)

    def kill_all_of(self, processes: list[Process], number: int) -> None:
        """Whole groups at once where they can be: a group signal cannot be outrun by a process that keeps forking."""
        own = os.getpgrp()
        for group in {process.group for process in processes} - {own, 0, 1}:
            with contextlib.suppress(OSError):
                os.killpg(group, number)
        for process in processes:
            signal_exactly(process, number)

    def end_everything(self, grace_s: float) -> None:
        """Returns when not one descendant is left. There is no giving up: a lease that is free must mean what it says."""
        if grace_s > 0:
            if LINUX:
                descendants = below(self.pid, process_table())
                for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCONT):
                    for process in descendants:
                        signal_exactly(process, number)
            else:
                self.signal_groups(signal.SIGTERM)
            deadline = time.monotonic() + grace_s
            while self.reap() and (left := deadline - time.monotonic()) > 0:
                select.select([self.wake], [], [], left)
                self.clear_wake()
        pause = 0.001
        while self.reap():
            if LINUX:
                self.kill_all_of(below(self.pid, process_table()), signal.SIGKILL)
            else:
                self.signal_groups(signal.SIGKILL)
            select.select([self.wake], [], [], pause)
            self.clear_wake()
            pause = min(2 * pause, RESCAN_MAX_S)

    def signal_groups(self, number: int) -> None:
        for pid in self.children:
            with contextlib.suppress(OSError):
                os.killpg(pid, number)


def main() -> None:
    library, worker_pid, lease_fd, children_file = sys.argv[1:5]
    os.set_inheritable(int(lease_fd), False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1024 and (hard == resource.RLIM_INFINITY or hard >= 1024):
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    Holder(library, int(worker_pid), children_file).run()


if __name__ == "__main__":
    main()
