"""`rollstream redis serve`: the embedded server's program for several machines, in the foreground.

It is the keeper's twin: the same lock on the data directory, the same guard, the same restarts with pauses, but it listens on an address
and lives until it is told to end (SIGTERM, SIGINT), not until its users leave. Users come first: before anything can connect, the default
user is off and those of `users.py` have passwords, each in a file of its own. No password stands in a command line,
a log or the address file.

The address file tells programs where the server is; it is there while the server serves, written whole or not at all, and removed at a
clean stop. Traffic is not encrypted: the program from the wheel has no TLS. Use it inside a trusted network, or a stock server with `rediss://`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import selectors
import shlex
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from ops.redis.users import acl_directives, make_passwords, password_file, roles
from pipeline.embedded import AppendFsync, ServerOptions, ServerStatus, State, find_server_binary
from pipeline.embedded.errors import EmbeddedServerError
from pipeline.embedded.guard import Guard, GuardPlan
from pipeline.embedded.locks import FileLock, Mode
from pipeline.embedded.places import DataPlaces
from pipeline.embedded.probe import Endpoint
from pipeline.embedded.server_config import Directive, base_directives, render
from pipeline.embedded.supervision import SupervisedServer, rotate_log
from pipeline.errors import InvalidRequest, RollstreamError
from pipeline.file_systems import FileSystem, file_system_of
from pipeline.folders import Folders, make_folder, refuse_network_folder

_LOCK_WAIT_S = 2.0
"""For a predecessor that is ending."""
_SHARED_OPTIONS = ServerOptions(appendfsync="everysec")
"""`always` costs two thirds of the rate; the window that this leaves is closed by the clients, which submit again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """What `rollstream redis serve` was asked for."""

    data_dir: Path
    """On a local disk."""
    shared_dir: Path
    """Where the address file and the password files go; may be shared between machines."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 6379
    """0: a free one, told by the address file."""
    advertise: str = ""
    """What others connect to; by default the address, or this machine's name where that is a wildcard."""
    with_passwords: bool = True
    """Without them only a loopback address is allowed."""
    namespace: str = "rs"
    options: ServerOptions = _SHARED_OPTIONS

    @property
    def advertised_host(self) -> str:
        """What others connect to."""
        if self.advertise:
            return self.advertise
        return socket.gethostname() if self.host in ("0.0.0.0", "::", "*") else self.host

    @property
    def address_file(self) -> Path:
        """Where programs find the server."""
        return self.shared_dir / "address.json"


class RedisService:
    """One run of the server. Complete after `__init__`, which holds the data directory; `run` serves until told to end."""

    def __init__(self, settings: ServeSettings, *, binary: Path, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._places = DataPlaces(make_folder(settings.data_dir).resolve())
        self._passwords = make_passwords(settings.shared_dir, roles(settings.namespace)) if settings.with_passwords else {}
        self._port = settings.port
        self._lock = FileLock(self._places.instance_lock)
        if not self._lock.lock_within(Mode.EXCLUSIVE, _LOCK_WAIT_S):
            raise EmbeddedServerError(f"{self._places.data_dir} is in use by another server: end it, or choose another data directory")
        rotate_log(self._places.server_log)
        self._was_told_to_end = False
        self._is_announced = False
        self._server = SupervisedServer(
            Guard(
                GuardPlan(
                    binary=binary,
                    data_dir=self._places.data_dir,
                    log_path=self._places.server_log,
                    lock_fd=self._lock.fileno(),
                    stop_grace_s=settings.options.stop_grace_s,
                )
            ),
            config=self._config,
            endpoint=self._endpoint,
            data_dir=self._places.data_dir,
            log_path=self._places.server_log,
            restart_cap_s=settings.options.restart_cap_s,
            on_change=self._on_change,
        )

    def run(self) -> int:
        """Serves until SIGTERM or SIGINT; answers the exit code: 0 after a clean stop, 1 when the server could not serve."""
        signals, wakeup = socket.socketpair()
        for end in (signals, wakeup):
            end.setblocking(False)
        before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        old_wakeup = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        try:
            self._serve(signals)
        finally:
            signal.set_wakeup_fd(old_wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            for end in (signals, wakeup):
                end.close()
            self._lock.close()
        return 0 if self._was_told_to_end else 1

    def _serve(self, signals: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(signals, selectors.EVENT_READ)
            self._server.start()
            while not self._server.has_ended:
                wake_at = self._server.wake_at
                for key, _ in selector.select(None if wake_at is None else max(0.0, wake_at - time.monotonic())):
                    if key.fileobj is signals:
                        signals.recv(4096)
                        self._was_told_to_end = True
                        self._server.stop()
                    else:
                        self._server.on_report()
                if self._server.wake_at is not None and time.monotonic() >= self._server.wake_at:
                    self._server.on_time()

    def _config(self) -> str:
        """The configuration for the next start. A port to be chosen is chosen anew until the server has got hold of one."""
        settings = self._settings
        if settings.port == 0 and not self._server.status.was_ready:
            self._port = _free_port(settings.host)
        users: list[Directive] = acl_directives(roles(settings.namespace), self._passwords) if settings.with_passwords else []
        listening: list[Directive] = [("bind", settings.host), ("port", str(self._port)), ("protected-mode", "yes")]
        return render([*listening, *users, *base_directives(settings.options, self._places.data_dir)])

    def _endpoint(self) -> Endpoint:
        """Where the service asks its own server; as `ops`, who may read INFO."""
        own = {"0.0.0.0": "127.0.0.1", "*": "127.0.0.1", "::": "::1"}.get(self._settings.host, self._settings.host)
        if self._settings.with_passwords:
            return Endpoint(address=(own, self._port), user="ops", password=self._passwords["ops"])
        return Endpoint(address=(own, self._port))

    def _on_change(self, status: ServerStatus) -> None:
        match status.state:
            case State.READY if not self._is_announced:
                self._announce()
            case State.READY:
                self._say(f"the server serves again (pid {status.pid})")
            case State.STARTING if status.was_ready:
                self._say(f"{status.reason}\nit is started again")
            case State.BACKING_OFF if not status.cannot_start:
                self._say(f"{status.reason}\nit is started again after a pause")
            case State.BACKING_OFF:  # it was tried twice
                self._say(f"the server does not start: {status.reason}")
                self._server.stop()
            case State.ENDED:
                if not self._was_told_to_end and status.was_ready:
                    self._say(f"the server is gone: {status.reason}")
                self._remove_address()
            case _:
                pass

    def _announce(self) -> None:
        """The server serves for the first time: programs and people may know."""
        try:
            self._write_address()
        except OSError as error:
            self._say(f"the address file cannot be written: {error}")
            self._server.stop()
            return
        self._is_announced = True
        self._say(self._how_to_connect())

    def _write_address(self) -> None:
        """Whole or not at all."""
        settings = self._settings
        content = {
            "host": settings.advertised_host,
            "port": self._port,
            "users": {name: str(password_file(settings.shared_dir, name)) for name in self._passwords},
            "pid": os.getpid(),
            "machine": socket.gethostname(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        make_folder(settings.shared_dir)
        fd, name = tempfile.mkstemp(prefix=".address-", dir=settings.shared_dir)
        with os.fdopen(fd, "w") as file:
            json.dump(content, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(fd)
        Path(name).replace(settings.address_file)

    def _remove_address(self) -> None:
        """Only our own: another server may have written its address over ours."""
        with contextlib.suppress(FileNotFoundError):
            content = json.loads(self._settings.address_file.read_text())
            if (content["pid"], content["machine"]) == (os.getpid(), socket.gethostname()):
                self._settings.address_file.unlink()

    def _how_to_connect(self) -> str:
        settings = self._settings
        host = settings.advertised_host
        place = f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"
        lines = [
            f"redis serves at {place}; data in {self._places.data_dir}, appendfsync {settings.options.appendfsync}",
            f"address file: {settings.address_file}",
            "",
            "on each machine:",
        ]
        if settings.with_passwords:
            file = shlex.quote(str(password_file(settings.shared_dir, "worker")))
            lines += [
                f"  export ROLLSTREAM_REDIS_URL=redis://{place}/0 ROLLSTREAM_REDIS_USER=worker ROLLSTREAM_REDIS_PASSWORD_FILE={file}",
                f"users: {', '.join(self._passwords)}; each has its password in {settings.shared_dir}/<user>.password",
            ]
        else:
            lines.append(f"  export ROLLSTREAM_REDIS_URL=redis://{place}/0")
        if not _is_loopback(settings.host):
            lines.append("traffic is not encrypted: keep this address inside a network you trust")
        return "\n".join(lines)


def serve(
    *,
    data_dir: Path | None = None,
    shared_dir: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 6379,
    advertise: str = "",
    with_passwords: bool = True,
    namespace: str = "rs",
    appendfsync: AppendFsync = "everysec",
    maxmemory_bytes: int | None = None,
    environ: Mapping[str, str] | None = None,
    file_system: Callable[[Path], FileSystem] = file_system_of,
    say: Callable[[str], None] | None = None,
) -> int:
    """Serves Redis to several machines until SIGTERM or SIGINT; see `ServeSettings` for the arguments.

    Args:
        data_dir: `<data>/redis-serve` by default.
        shared_dir: `<state>/redis` by default.
        file_system: answers which file system holds a path.
        say: told what a person should read; standard output by default.

    Returns:
        The exit code of the command: 0 after a clean stop, 1 when it could not serve; the reason is on standard error or told by `say`.
    """
    speak = say or (lambda text: print(text, flush=True))
    try:
        folders = Folders.from_environment(environ)
        settings = ServeSettings(
            data_dir=data_dir or folders.data / "redis-serve",
            shared_dir=(shared_dir or folders.state / "redis").absolute(),
            host=host,
            port=port,
            advertise=advertise,
            with_passwords=with_passwords,
            namespace=namespace,
            options=replace(_SHARED_OPTIONS, appendfsync=appendfsync, maxmemory_bytes=maxmemory_bytes),
        )
        _refuse_open_door(settings)
        refuse_network_folder(settings.data_dir, "the data directory", file_system=file_system)
        return RedisService(settings, binary=find_server_binary(environ), say=speak).run()
    except RollstreamError as error:
        print(f"rollstream redis serve: {error}", file=sys.stderr, flush=True)
        return 1


def _refuse_open_door(settings: ServeSettings) -> None:
    """Says no to a server that anybody on the network could use."""
    if not settings.with_passwords and not _is_loopback(settings.host):
        raise InvalidRequest(
            f"listening on {settings.host} without passwords would give everybody on the network the queue: "
            "leave passwords on, or listen on 127.0.0.1",
            field="host",
        )


def _is_loopback(host: str) -> bool:
    """Whether every address that the name stands for stays on this machine; a wildcard does not."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM) if host not in ("", "*") else []
    except OSError as error:
        raise InvalidRequest(f"{host!r} is no address of this machine: {error}", field="host") from error
    return bool(found) and all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def _free_port(host: str) -> int:
    """A port that is free now. Another program may take it before the server does; then the next start chooses again."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.bind(("" if host == "*" else host, 0))
        return int(sock.getsockname()[1])
