"""The keeper: the small process that owns the server of one data directory. The protocol is in the package's docstring.

    python -m pipeline.embedded.keeper DATA_DIR     (request on standard input, one JSON line as the answer on standard output)

It imports the standard library and this package only, so that it starts in a fraction of a second, and it holds nothing but the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from pipeline.embedded.control import Greeting, ServerStatus, State
from pipeline.embedded.errors import EmbeddedServerError
from pipeline.embedded.guard import Guard, GuardPlan
from pipeline.embedded.lines import JsonObject, LineSocket
from pipeline.embedded.locks import FileLock, Mode
from pipeline.embedded.memory import default_maxmemory_bytes, memory_limit_bytes
from pipeline.embedded.places import DataPlaces, SocketPlaces
from pipeline.embedded.probe import Endpoint, ask_to_stop
from pipeline.embedded.request import KeeperRequest
from pipeline.embedded.server_config import ServerOptions, embedded_directives, render
from pipeline.embedded.supervision import SupervisedServer, rotate_log
from pipeline.errors import RollstreamError

_PATIENCE_S = 1.0
"""How long the lock may be held before a server without a keeper is asked to end: longer than one needs that is ending already."""
_LOCK_MARGIN_S = 5.0
"""On top of the grace period of a server that ends: for its guard to reap it."""


class _User:
    """One connection of a user."""

    def __init__(self, link: LineSocket) -> None:
        self.link = link
        self.is_leaving = False


class Keeper:
    """One data directory's keeper, from taking the lock to giving it up.

    Args:
        places: the data directory.
        request: how to run the server.

    Raises:
        EmbeddedServerError: somebody else holds the directory and does not let go.
        FolderError: the sockets cannot be made.
    """

    def __init__(self, places: DataPlaces, request: KeeperRequest) -> None:
        self._places = places
        self._lock = _own_instance(places, request.options)
        self._sockets = places.make_sockets(request.run_dir)
        for log in (places.server_log, places.keeper_log):
            with contextlib.suppress(OSError):  # a full disk; an old log is better than no server
                rotate_log(log)
        _log_to(places.keeper_log)
        maxmemory = request.options.maxmemory_bytes or default_maxmemory_bytes(memory_limit_bytes())
        self._greeting = Greeting(
            keeper_pid=os.getpid(), socket=str(self._sockets.server), appendfsync=request.options.appendfsync, maxmemory_bytes=maxmemory
        )
        config = render(embedded_directives(request.options, places.data_dir, self._sockets.server))
        endpoint = Endpoint(address=self._sockets.server)
        self._server = SupervisedServer(
            Guard(
                GuardPlan(
                    binary=request.binary,
                    data_dir=places.data_dir,
                    log_path=places.server_log,
                    lock_fd=self._lock.fileno(),
                    stop_grace_s=request.options.stop_grace_s,
                )
            ),
            config=lambda: config,
            endpoint=lambda: endpoint,
            data_dir=places.data_dir,
            log_path=places.server_log,
            restart_cap_s=request.options.restart_cap_s,
            on_change=self._on_change,
        )
        # From here on the guard has its copy of everything it may hold: sockets and threads may follow.
        self._listener = _listen(self._sockets)
        self._users: list[_User] = []
        self._users_lock = FileLock(places.users_lock)
        self._wakes, self._wake = socket.socketpair()
        for end in (self._wakes, self._wake):
            end.setblocking(False)

    def run(self) -> None:
        """Keeps the server until no user is left, or until SIGTERM; returns when the server has ended and the directory is free."""
        selector = selectors.DefaultSelector()
        selector.register(self._listener, selectors.EVENT_READ, lambda: self._accept(selector))
        selector.register(self._wakes, selectors.EVENT_READ, self._on_wake)
        selector.register(self._server, selectors.EVENT_READ, self._server.on_report)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._wait_for_last_user, name="last user", daemon=True).start()
        self._server.start()
        while not self._server.has_ended:
            wake_at = self._server.wake_at
            for key, _ in selector.select(None if wake_at is None else max(0.0, wake_at - time.monotonic())):
                act: Callable[[], None] = key.data
                act()
            if self._server.wake_at is not None and time.monotonic() >= self._server.wake_at:
                self._server.on_time()
        # Users see end of file only now, with the process: to them it says that the server has ended and the directory is free.
        self._sockets.control.unlink(missing_ok=True)
        self._lock.close()
        self._users_lock.close()

    def _wait_for_last_user(self) -> None:
        """Runs in a thread. The lock is granted when nobody shares it: whoever comes then waits until this process is gone."""
        self._users_lock.lock(Mode.EXCLUSIVE)
        _say("last_user_left")
        self._wake.send(b"\0")

    def _on_wake(self) -> None:
        """The last user left, or a signal came: either way, end."""
        self._wakes.recv(4096)
        self._server.stop()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        connection, _ = self._listener.accept()
        user = _User(LineSocket(connection))
        self._users.append(user)
        selector.register(user.link, selectors.EVENT_READ, lambda: self._hear(user, selector))
        if user.link.send(self._greeting.to_message()) and user.link.send(self._server.status.to_message()):
            self._answer_leavers()

    def _hear(self, user: _User, selector: selectors.BaseSelector) -> None:
        messages = user.link.receive()
        if messages is None:
            selector.unregister(user.link)
            self._users.remove(user)
            user.link.close()
        elif any("leave" in message for message in messages):
            user.is_leaving = True
            self._answer_leavers()

    def _answer_leavers(self) -> None:
        """Tells those who go that others stay. When nobody does, the users' lock tells, and then end of file."""
        staying = sum(not user.is_leaving for user in self._users)
        if staying:
            for user in self._users:
                if user.is_leaving:
                    user.link.send({"others": staying})

    def _on_change(self, status: ServerStatus) -> None:
        _say("server", **asdict(status))
        for user in self._users:
            if not user.link.send(status.to_message()):
                user.link.interrupt()  # it did not read for very long; it finds end of file and comes back
        if status.state is State.ENDED and status.reason:
            _say("keeper_ends", reason=status.reason)


def _own_instance(places: DataPlaces, options: ServerOptions) -> FileLock:
    """The instance lock. A predecessor that is ending is waited for; a server whose keeper and guard were both killed is asked to end."""

    def end_orphan() -> None:
        sockets = places.linked_sockets()
        if sockets is not None and _is_listening(sockets.control):
            raise EmbeddedServerError(f"{places.data_dir} has a keeper already, at {sockets.control}")
        if sockets is not None:
            ask_to_stop(Endpoint(address=sockets.server))

    lock = FileLock(places.instance_lock)
    patience_s = _PATIENCE_S + options.stop_grace_s + _LOCK_MARGIN_S
    if not lock.lock_within(Mode.EXCLUSIVE, patience_s, nudge=end_orphan, nudge_after_s=_PATIENCE_S):
        raise EmbeddedServerError(
            f"{places.data_dir} is in use by a server that this process cannot reach (`rollstream redis serve`, or one in another "
            "container): connect to that one, end it, or use another data directory"
        )
    return lock


def _listen(sockets: SocketPlaces) -> socket.socket:
    """The control socket; a file left there by a killed keeper is replaced, as the instance lock is ours."""
    if _is_listening(sockets.control):
        raise EmbeddedServerError(f"{sockets.control} is in use by the keeper of another data directory")
    sockets.control.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(sockets.control))
    listener.listen(512)
    return listener


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return False
    return True


def _say(event: str, **fields: object) -> None:
    """One line in the keeper's log. A full disk must not end the keeper, so a line that cannot be written is lost."""
    stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
    with contextlib.suppress(OSError):
        os.write(2, (json.dumps({"at": stamp, "event": event, **fields}) + "\n").encode())


def _answer(pipe_fd: int, message: JsonObject) -> None:
    """Tells the starter how it went, and gives its pipe up."""
    with contextlib.suppress(BrokenPipeError):  # the starter was killed; the users' lock tells whether anybody else is there
        os.write(pipe_fd, (json.dumps(message) + "\n").encode())
    os.close(pipe_fd)


def _log_to(path: Path) -> None:
    """Makes standard error the keeper's log, for the guard too; nothing of the starter's stays open."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError:  # a full disk
        fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(fd, 2)
    os.close(fd)


def main(argv: list[str]) -> int:
    """Detaches from the starter, takes the directory, answers, and keeps the server."""
    places = DataPlaces(Path(argv[1]))
    request = KeeperRequest.from_json(sys.stdin.readline())
    if os.fork():
        os._exit(0)  # the starter reaps this one at once; the keeper's parent is init, and nobody's child handling meets it
    os.chdir("/")
    os.umask(0o077)
    answer_fd = os.dup(1)
    devnull = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(devnull, standard)
    os.close(devnull)
    try:
        keeper = Keeper(places, request)
    except (RollstreamError, OSError) as error:
        _answer(answer_fd, {"error": str(error)})
        return 1
    _answer(answer_fd, {"listening": os.getpid()})
    _say("keeper_started", data_dir=str(places.data_dir), pid=os.getpid())
    keeper.run()
    _say("keeper_ended")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
