"""The guard: a process between the keeper and the server, so that the server never outlives its keeper.

    keeper ──socket pair── guard ──child── server

- The guard is the server's parent: it alone may signal it, and until it has reaped it no other process can have its pid.
- Its only order is "start"; its only duty otherwise is to end. **End of file on the socket pair ends the server** (SIGTERM, then SIGKILL
  after the grace period) and then the guard. The keeper stops a server by closing its end, and the kernel closes it when the keeper is
  killed: a normal stop and the death of the keeper are the same path.
- It reports each pid and each exit. End of file towards the keeper without such a report says that the guard was killed; then the kernel
  sends the server SIGTERM on Linux (parent-death signal: the guard has one thread, so the thread that forked lives as long as the process),
  and everywhere the keeper does once the server has named its pid.
- Server and forks of the server (a rewrite of the append-only file) are one process group; when the server is gone the rest is killed, so
  nothing writes into the data directory after an exit was reported.
- The guard and the server hold the data directory's lock by inheritance (`locks.py`).

It is forked, not executed: the pages are shared with the keeper, and its start costs a millisecond. Fork it before any thread is started.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from pipeline.embedded.lines import JsonObject, LineSocket
from pipeline.parent_death import die_with_parent

_MAX_OPEN_FILES = 10_240
"""What the server asks for with its default of 10,000 clients; macOS refuses more than this even when it names no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardPlan:
    """What a guard runs, the same for every start of the server."""

    binary: Path
    data_dir: Path
    log_path: Path
    """Where the server writes, appended."""
    lock_fd: int
    """The data directory's lock, held by the server too."""
    stop_grace_s: float


class Guard:
    """The keeper's side of its guard."""

    def __init__(self, plan: GuardPlan) -> None:
        ours, theirs = socket.socketpair()
        self._link = LineSocket(ours)
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                ours.close()
                _close_all_but({0, 1, 2, plan.lock_fd, theirs.fileno()})
                _run_guard(plan, theirs)
                status = 0
            except BaseException:  # noqa: BLE001 -- the child must never return into the keeper's code
                traceback.print_exc()
            finally:
                os._exit(status)
        theirs.close()

    def fileno(self) -> int:
        """For a selector: readable when there is a report."""
        return self._link.fileno()

    def start_server(self, config: str) -> None:
        """Orders a start. A guard that is gone does not take it; its end of file says so."""
        self._link.send({"start": config})

    def reports(self) -> list[JsonObject] | None:
        """`{"pid": n}`, `{"exit": code}` (negative: the signal) or `{"failed": text}`; None when the guard is gone."""
        return self._link.receive()

    def stop(self) -> None:
        """Ends the server and the guard; the reports tell when."""
        self._link.end_sending()

    def reap(self) -> None:
        """Takes the guard's exit status after its end of file."""
        os.waitpid(self.pid, 0)
        self._link.close()


def _run_guard(plan: GuardPlan, link: socket.socket) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _note)  # the keeper decides; a handler, unlike SIG_IGN, is not inherited by the server
    signals, wakeup = socket.socketpair()
    for end in (signals, wakeup):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, _note)
    signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    _raise_open_files()

    orders = LineSocket(link)
    server: subprocess.Popen[bytes] | None = None
    while True:
        ready, _, _ = select.select([orders.fileno(), signals.fileno()], [], [])
        if signals.fileno() in ready:
            signals.recv(4096)
        if server is not None and (code := _reap(server)) is not None:
            server = None
            orders.send({"exit": code})
        if orders.fileno() not in ready:
            continue
        received = orders.receive()
        if received is None:
            break
        for order in received:
            try:
                server = _spawn(plan, str(order["start"]))
            except OSError as error:
                orders.send({"failed": str(error)})
            else:
                orders.send({"pid": server.pid})
    if server is not None:
        orders.send({"exit": _end(server, plan.stop_grace_s, signals)})


def _close_all_but(kept: set[int]) -> None:
    """Closes what the keeper had open: a copy held here would outlive it, and end of file is how its peers learn of its death."""
    for name in os.listdir("/dev/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # the descriptor of this very listing
                os.close(int(name))


def _note(number: int, frame: object) -> None:
    """A signal handler that does nothing: the wake-up descriptor has told already."""


def _spawn(plan: GuardPlan, config: str) -> subprocess.Popen[bytes]:
    remove_leftovers(plan.data_dir)
    output = _open_log(plan.log_path)
    try:
        server = subprocess.Popen(
            [str(plan.binary), "-"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=plan.data_dir,
            pass_fds=(plan.lock_fd,),
            process_group=0,
            umask=0o077,
            preexec_fn=die_with_parent(),  # safe: one thread
        )
    finally:
        os.close(output)
    assert server.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended before it read: its exit is reported
        server.stdin.write(config.encode())
        server.stdin.close()
    return server


def _open_log(path: Path) -> int:
    """The server's log; on a disk so full that not even an empty file fits, nothing, as the server must start all the same."""
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _reap(server: subprocess.Popen[bytes]) -> int | None:
    """The server's exit code once it has ended, with its process group swept; None while it runs.

    The sweep comes before the reaping where the system lets one look first: as long as the server is a zombie its group id is its own.
    """
    if sys.platform != "darwin" and os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return None
    if sys.platform == "darwin" and server.poll() is None:
        return None
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left in it
        os.killpg(server.pid, signal.SIGKILL)
    return server.wait()


def _end(server: subprocess.Popen[bytes], grace_s: float, signals: socket.socket) -> int:
    """SIGTERM, and SIGKILL when the grace period is over; answers the exit code."""
    server.terminate()
    deadline = time.monotonic() + grace_s
    while (code := _reap(server)) is None:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            os.killpg(server.pid, signal.SIGKILL)
        ready, _, _ = select.select([signals], [], [], left_s if left_s > 0 else None)
        if ready:
            signals.recv(4096)
    return code


def remove_leftovers(data_dir: Path) -> None:
    """Removes the unfinished files of a rewrite that was killed; call only with the directory's lock and no server."""
    for folder in (data_dir, data_dir / "appendonlydir"):
        for pattern in ("temp-*.aof", "temp-*.rdb", "temp_*.manifest"):
            for path in folder.glob(pattern):
                path.unlink(missing_ok=True)
