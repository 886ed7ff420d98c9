"""What the tests of the embedded server share: a folder of their own with short paths, and users that can be killed."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from pipeline.embedded import EmbeddedServer, ServerOptions, embedded_redis
from pipeline.embedded.locks import FileLock, Mode

_ROOT = Path(__file__).parents[3]
PATIENCE_S = 20.0


def is_running(pid: int | None) -> bool:
    """Whether a process runs; one that has ended and waits for its parent (or init) to reap it does not."""
    assert pid is not None
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@dataclass(slots=True)
class User:
    """A process that runs `user_program.py`."""

    process: subprocess.Popen[bytes]
    _rest: bytes = field(default=b"", init=False)

    def tell(self, command: str) -> None:
        """Gives it a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()

    def says(self) -> dict[str, Any]:
        """The next thing it says."""
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
            assert ready, f"the user process said nothing for {PATIENCE_S} s"
            piece = os.read(self.process.stdout.fileno(), 65_536)
            assert piece, f"the user process ended with {self.process.wait()}"
            self._rest += piece
        line, self._rest = self._rest.split(b"\n", 1)
        said: dict[str, Any] = json.loads(line)
        return said

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def said_before_its_death(self) -> list[dict[str, Any]]:
        """What a killed one had said and nobody has read; a line that it did not finish does not count."""
        assert self.process.stdout is not None
        *lines, _ = (self._rest + self.process.stdout.read()).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        """Frees everything the test holds of it."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.kill()
        self.process.wait()


@dataclass(slots=True)
class Place:
    """One data directory, and who uses it."""

    data_dir: Path
    run_dir: Path
    users: list[User] = field(default_factory=list)

    def hold(self, *, binary: Path | None = None, **options: Any) -> EmbeddedServer:
        """The test's own hold; `options` are those of the server."""
        return embedded_redis(self.data_dir, run_dir=self.run_dir, binary=binary, options=ServerOptions(**options))

    def start_user(self, **settings: str) -> User:
        """Starts a user process, with more environment settings, and does not wait for it."""
        user = User(
            subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("user_program.py")), str(self.data_dir), str(self.run_dir)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(_ROOT), **settings},
            )
        )
        self.users.append(user)
        return user

    def is_free_within(self, timeout_s: float = PATIENCE_S) -> bool:
        """Whether keeper, guard and server, who share one lock, are all gone within the time."""
        with FileLock(self.data_dir / "instance.lock") as lock:
            return lock.lock_within(Mode.EXCLUSIVE, timeout_s)


@pytest.fixture
def place() -> Iterator[Place]:
    """A data directory under a short path; when the test is over nothing of it runs any more."""
    folder = Path(tempfile.mkdtemp(prefix="rs-", dir="/tmp"))
    place = Place(folder / "data", folder / "run")
    try:
        yield place
        for user in place.users:
            user.end()
        if place.data_dir.exists():
            assert place.is_free_within(), "the server outlived its last user"
    finally:
        for user in place.users:
            user.end()
        shutil.rmtree(folder)


@pytest.fixture
def kill() -> Callable[[int | None], None]:
    """kill -9 of a process that is there."""

    def kill_process(pid: int | None) -> None:
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    return kill_process


@pytest.fixture
def connect() -> Iterator[Callable[[EmbeddedServer], redis.Redis]]:
    """Clients without retries: a test wants to see what happens."""
    clients: list[redis.Redis] = []

    def to(server: EmbeddedServer) -> redis.Redis:
        client = redis.Redis.from_url(server.url, retry=None, socket_timeout=PATIENCE_S)
        clients.append(client)
        return client

    yield to
    for client in clients:
        client.close()
