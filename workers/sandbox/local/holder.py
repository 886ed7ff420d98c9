"""The process under which everything of one attachment runs: `python -I -S holder.py LIBRARY WORKER_PID CHILDREN_FILE LEASE_FD...`.

    worker ── control socket (our fd 0) ──> holder ──> bash, kernels, commands ──> whatever those start
                                              ├─ holds the leases: LEASE_FD and more, descriptors with a flock, never handed to children
                                              └─ with walls: command of the backend ──> keeper, PID 1 of the sandbox (`keeper.py`)

1. Everything started here stays below us: we are a subreaper (Linux), so what daemonises is re-parented to us, not to PID 1.
2. The control socket closes when the worker ends, however it ends. Then, and on `stop`, and on SIGTERM, we kill all descendants and
   exit only when none is left; so a free lease means that nothing of the attachment runs.
3. We reap every child, ours and adopted, and nobody else's exit code: no other code waits in this process.
4. Should we be killed ourselves, the children get SIGKILL from the kernel (PR_SET_PDEATHSIG); who looks for the rest finds them by the
   children file and by the mark in their environment. With walls the keeper sees us go, and the kernel ends its whole PID namespace.
5. With walls (`boot`) what is started afterwards is started inside: a child of ours enters the keeper's namespaces (`entering.py`), and
   leaves a child there which becomes the program. Numbers of processes are ours, not the sandbox's. When PID 1 ends, so do we.

One thread, standard library, and `ptyprocess` for terminals (its folder is LIBRARY); imports nothing of Rollstream.
Without /proc (macOS) there is no subreaper: process groups are killed, and a daemon that left its group escapes.

Frames both ways: length (4 bytes, big endian), JSON; descriptors travel beside the first byte of their frame.
    {"op": "boot", "id", "argv", "env", "fds": [numbers], "seccomp": hex, "timeout_s"}
                                                       -> {"id", "pid": of PID 1, "fds": 0} or {"id", "errno", "error"}
    {"op": "spawn"|"pty", "id", "argv", "env", "cwd", "fds": [numbers], "limits": {...}, "rows", "columns", "outside": bool}
                                                       -> {"id", "pid", "fds"} or {"id", "errno", "error"}
    {"op": "kill", "pid", "signal", "scope"}           no answer
    {"op": "stop", "grace_s"}                          -> {"event": "stopped"}, then the end
    {"event": "ready"}, {"event": "exit", "pid", "code"}, {"event": "walls_ended"}
"""

from __future__ import annotations

import array
import contextlib
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
import termios
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.sandbox.local import becoming, descendants, entering, keeper
    from workers.sandbox.local.descendants import Process
else:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import becoming
    import descendants
    import keeper
    from descendants import Process

    if sys.platform == "linux":
        import entering
    del sys.path[0]

LINUX = sys.platform == "linux"
RESCAN_MAX_S = 0.05
ENTER_TIMEOUT_S = 10.0
"""For a child on its way in, a thousand times what it takes: a loaded node is slow, a guest that stops it is for ever."""


class Walls:
    """What stands between the sandbox and us, once it stands."""

    def __init__(self, launcher: int, keeper_pid: int, hold: socket.socket, seccomp: bytes) -> None:
        self.launcher = launcher
        self.keeper = Process(keeper_pid)
        self.hold = hold
        self.seccomp = seccomp
        self.namespaces = entering.Namespaces(keeper_pid)

    def are_falling(self) -> bool:
        """Whether PID 1 is on its way out: it kills all others first, which are reaped before it is."""
        try:
            now = Process(self.keeper.pid)
        except (OSError, IndexError, ValueError):
            return True
        return now.started != self.keeper.started or now.is_exiting

    def inside(self, running: list[Process]) -> list[Process]:
        """Those of our descendants that run behind the walls, the keeper not among them."""
        depth = len(descendants.namespace_numbers("self"))
        found = []
        for process in running:
            with contextlib.suppress(OSError):
                if process.pid != self.keeper.pid and len(descendants.namespace_numbers(process.pid)) > depth:
                    found.append(process)
        return found


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
        self.walls: Walls | None = None
        self.wake, wake_write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self.on_sigterm)
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
            signal.signal(ignored, signal.SIG_IGN)
        becoming.prctl(becoming.PR_SET_NAME, b"rs-holder")
        becoming.prctl(becoming.PR_SET_CHILD_SUBREAPER, 1)
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
            start = {"boot": self.boot, "spawn": self.spawn, "pty": self.spawn_pty}[operation]
            try:
                pid, terminal = start(request, given)
            except OSError as error:
                self.send({"id": request["id"], "errno": error.errno or errno.EIO, "error": error.strerror or str(error)})
                return
            finally:
                for number in given:
                    os.close(number)
            if operation != "boot":
                self.children.add(pid)
            self.record(pid)
            self.send({"id": request["id"], "pid": pid, "fds": int(terminal >= 0)}, terminal)
            if terminal >= 0:
                os.close(terminal)

    def record(self, pid: int) -> None:
        if LINUX:
            with contextlib.suppress(OSError):
                self.children_log.write(f"{pid} {Process(pid).started}\n")
                self.children_log.flush()

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

    def prepare(self, request: dict[str, Any], *, follows_parent: bool = True) -> Callable[[], None]:
        """What a new child does to itself just before it becomes the program.

        Args:
            follows_parent: it is our child, and the kernel kills it when we end; behind walls PID 1 sees to that.
        """
        parent = os.getpid()

        def in_the_child() -> None:
            if follows_parent:
                becoming.prctl(becoming.PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(125)
                becoming.set_oom_score()
            becoming.default_signals()
            os.umask(0o022)
            limits = request["limits"]
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            for name, kind in becoming.LIMITS.items():
                hard = resource.getrlimit(kind)[1]
                wanted = limits[name] if hard == resource.RLIM_INFINITY else min(limits[name], hard)
                with contextlib.suppress(OSError, ValueError):  # macOS refuses some
                    resource.setrlimit(kind, (wanted, wanted))
            with contextlib.suppress(OSError):
                os.nice(limits["nice"])

        return in_the_child

    def spawn(self, request: dict[str, Any], given: list[int]) -> tuple[int, int]:
        places = dict(zip(request["fds"], given, strict=True))
        if self.walls is not None and not request.get("outside"):
            return self.start_inside(self.walls, request, places, -1), -1
        prepare = self.prepare(request)
        return self.start(request["argv"], request["env"], request["cwd"], places, prepare), -1

    def start(self, argv: list[str], env: Mapping[str, str], cwd: str, places: Mapping[int, int], prepare: Callable[[], None]) -> int:
        """Forks a child that becomes the program, in a session of its own; `places` are the descriptors by the numbers it sees."""
        error_read, error_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                becoming.enter(cwd)
                error_write = becoming.put_in_place(places, error_write)
                prepare()
                os.execvpe(argv[0], argv, env)
            except OSError as error:
                becoming.tell(error_write, error)
            finally:
                os._exit(126)
        os.close(error_write)
        try:
            becoming.hear(error_read)
        except OSError:
            os.waitpid(pid, 0)
            raise
        return pid

    def spawn_pty(self, request: dict[str, Any], given: list[int]) -> tuple[int, int]:
        if self.walls is not None:
            return self.spawn_pty_inside(self.walls, request, given)
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
                becoming.enter(request["cwd"])
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

    # -- behind walls -----------------------------------------------------------------------------------------------------------

    def boot(self, request: dict[str, Any], given: list[int]) -> tuple[int, int]:
        """Runs the command that builds the walls; returns when PID 1 says that they stand.

        Raises:
            OSError: they do not; with the last that the command said.
        """
        assert self.walls is None, "a sandbox boots once"
        ready, theirs_ready = os.pipe()
        hold, theirs_hold = socket.socketpair()
        said = os.memfd_create("said")
        null = os.open(os.devnull, os.O_RDONLY)
        places = dict(zip(request["fds"], given, strict=True))
        places |= {0: null, 1: said, 2: said, keeper.READY_FD: theirs_ready, keeper.HOLD_FD: theirs_hold.fileno()}
        parent = os.getpid()

        def prepare() -> None:
            becoming.prctl(becoming.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(125)
            becoming.default_signals()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        try:
            launcher = self.start(request["argv"], request["env"], "/", places, prepare)
            self.record(launcher)
            theirs_hold.close()
            os.close(theirs_ready)
            theirs_ready = -1
            problem = self.wait_ready(ready, launcher, request["timeout_s"])
            pid = descendants.find_keeper(launcher) if not problem else 0
            if not pid:
                said_text = os.pread(said, 4000, max(0, os.fstat(said).st_size - 4000)).decode("utf-8", "replace").strip()
                raise OSError(errno.EIO, f"{problem or 'no PID 1 below it'}" + (f": {said_text}" if said_text else ""))
            self.walls = Walls(launcher, pid, hold, bytes.fromhex(request["seccomp"]))
            # daemons of FUSE: they outlive the command, and carry no mark
            for helper in descendants.below(launcher, descendants.process_table()):
                if helper.pid != pid:
                    self.record(helper.pid)
        finally:
            os.close(ready)
            os.close(said)
            os.close(null)
            if theirs_ready >= 0:
                os.close(theirs_ready)
        return pid, -1

    def wait_ready(self, ready: int, launcher: int, timeout_s: float) -> str:
        """Empty when the byte of PID 1 has come, else what happened instead."""
        poll = select.poll()
        poll.register(ready, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        poll.register(self.control, 0)  # only its end is of interest now
        if self.worker >= 0:
            poll.register(self.worker, select.POLLIN)
        deadline = time.monotonic() + timeout_s
        while self.stopping is None and (left := deadline - time.monotonic()) > 0:
            for descriptor, _ in poll.poll(left * 1000):
                if descriptor == ready:
                    if os.read(ready, 1):
                        return ""
                    return self.how_launcher_ended(launcher)
                if descriptor == self.wake:
                    self.clear_wake()
                else:
                    self.stopping = 0.0
        return "stopped meanwhile" if self.stopping is not None else f"no sign of PID 1 within {timeout_s:g} s"

    def how_launcher_ended(self, launcher: int) -> str:
        """Its side of the pipe is closed, so it has ended, or PID 1 has."""
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            pid, status = os.waitpid(launcher, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                return f"it ended with {f'exit code {code}' if code >= 0 else f'signal {-code}'}"
            select.select([self.wake], [], [], 0.01)
            self.clear_wake()
        return "PID 1 ended before it was ready"

    def start_inside(self, walls: Walls, request: dict[str, Any], places: Mapping[int, int], terminal: int) -> int:
        """Forks a child that enters and forks again, since a PID namespace is for children; the second becomes the program.

        Args:
            terminal: a terminal's slave side that becomes the controlling one, and 0, 1 and 2; -1 = none.
        """
        error_read, error_write = os.pipe()
        number_read, number_write = os.pipe()
        prepare = self.prepare(request, follows_parent=False)
        between = os.fork()
        if between == 0:
            try:
                becoming.set_oom_score()
                entering.hide()
                entering.forbid_imports()
                walls.namespaces.join()
                walls.namespaces.join_user()
                pid = os.fork()
                if pid:
                    os.write(number_write, str(pid).encode())
                    os._exit(0)
                os.setsid()
                if terminal >= 0:
                    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
                    places = {0: terminal, 1: terminal, 2: terminal, **places}
                error_write = becoming.put_in_place(places, error_write)
                becoming.enter(request["cwd"])
                prepare()
                entering.drop_privileges(walls.seccomp)
                becoming.become(request["argv"], request["env"])
            except OSError as error:
                becoming.tell(error_write, error)
            finally:
                os._exit(126)
        os.close(error_write)
        os.close(number_write)
        os.waitpid(between, 0)
        pid = int(os.read(number_read, 32) or b"0")  # not to its end: the child holds the other side until it is the program
        os.close(number_read)
        try:
            becoming.hear(error_read, pid=pid, timeout_s=ENTER_TIMEOUT_S)
        except OSError:
            if pid:
                os.waitpid(pid, 0)
            raise
        if not pid:
            raise OSError(errno.EIO, "nothing came of entering the sandbox")
        return pid

    def spawn_pty_inside(self, walls: Walls, request: dict[str, Any], given: list[int]) -> tuple[int, int]:
        """The terminal is of the node's devpts and the program of the sandbox: `/dev/tty` names it wherever it was opened."""
        master, slave = os.openpty()
        try:
            fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", request["rows"], request["columns"], 0, 0))
            attributes = termios.tcgetattr(slave)
            attributes[3] &= ~termios.ECHO
            termios.tcsetattr(slave, termios.TCSANOW, attributes)
            pid = self.start_inside(walls, request, dict(zip(request["fds"], given, strict=True)), slave)
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        return pid, master

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
            if self.walls is not None and pid in (self.walls.launcher, self.walls.keeper.pid) and self.stopping is None:
                self.send({"event": "walls_ended"})
                self.stopping = 0.0
            code = os.waitstatus_to_exitcode(status)
            if code == -signal.SIGKILL and self.walls is not None and self.stopping is None and self.walls.are_falling():
                self.send({"event": "walls_ended"})  # and not that a command was killed: it was the sandbox
                self.stopping = 0.0
            if self.stopping is not None and self.walls is not None:
                continue  # the end of the control socket tells
            if pid in self.children:
                self.children.discard(pid)
                self.send({"event": "exit", "pid": pid, "code": code})

    def kill(self, pid: int, number: int, scope: str) -> None:
        if scope == "tree":
            self.kill_tree(pid, number)
        elif scope == "others":
            for process in descendants.process_table():
                if process.group == pid and process.pid != pid:
                    descendants.signal_exactly(process, number)
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
            table = descendants.process_table()
            mine = [process for process in descendants.below(self.pid, table) if process.session == root or process.pid in known]
            mine += [process for process in descendants.below(root, table) if process not in mine]
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
            descendants.signal_exactly(process, number)

    def end_everything(self, grace_s: float) -> None:
        """Returns when not one descendant is left. There is no giving up: a lease that is free must mean what it says."""
        if grace_s > 0:
            self.ask_to_end(grace_s)
        if self.walls is not None:
            descendants.signal_exactly(self.walls.keeper, signal.SIGKILL)  # and the kernel ends all of its PID namespace with it
        pause = 0.001
        while self.reap():
            if LINUX:
                self.kill_all_of(descendants.below(self.pid, descendants.process_table()), signal.SIGKILL)
            else:
                self.signal_groups(signal.SIGKILL)
            select.select([self.wake], [], [], pause)
            self.clear_wake()
            pause = min(2 * pause, RESCAN_MAX_S)

    def ask_to_end(self, grace_s: float) -> None:
        """Signals what runs in the sandbox, and waits until it has ended or the time is up."""
        deadline = time.monotonic() + grace_s
        pause = 0.001
        asked = False
        while self.reap() and (left := deadline - time.monotonic()) > 0:
            if LINUX:
                running = descendants.below(self.pid, descendants.process_table())
                if self.walls is not None:
                    running = self.walls.inside(running)
                    if not any(process.state not in (b"Z", b"X") for process in running):
                        return
                if not asked:
                    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCONT):
                        for process in running:
                            descendants.signal_exactly(process, number)
            elif not asked:
                self.signal_groups(signal.SIGTERM)
            asked = True
            select.select([self.wake], [], [], left if self.walls is None else min(left, pause))
            self.clear_wake()
            pause = min(2 * pause, RESCAN_MAX_S)

    def signal_groups(self, number: int) -> None:
        for pid in self.children:
            with contextlib.suppress(OSError):
                os.killpg(pid, number)


def main() -> None:
    library, worker_pid, children_file, *leases = sys.argv[1:]
    for lease in leases:
        os.set_inheritable(int(lease), False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1024 and (hard == resource.RLIM_INFINITY or hard >= 1024):
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    Holder(library, int(worker_pid), children_file).run()


if __name__ == "__main__":
    main()
