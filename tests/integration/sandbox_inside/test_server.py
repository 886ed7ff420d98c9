"""The execution server itself, run as a plain process: its start, its one connection, its end, and the zip that it is."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from pipeline.testing.wait import wait_until
from workers.sandbox.errors import SandboxGone
from workers.sandbox.inside import server_bundle
from workers.sandbox.inside.bundle import MAIN, MODULES, source
from workers.sandbox.inside.connection import ServerConnection
from workers.sandbox.inside.guest.frames import TOKEN_BYTES
from workers.sandbox.local.holder.keeper import HOLD_FD, READY_FD
from workers.sandbox.spec import Limits

TOKEN = bytes(range(TOKEN_BYTES))


class Running:
    """A server that waits for its connection."""

    def __init__(self, process: subprocess.Popen[bytes], hold: socket.socket, path: Path) -> None:
        self.process = process
        self.hold = hold
        self.path = path
        self.broken = ""
        self.connections: list[ServerConnection] = []

    def connect(self) -> socket.socket:
        control = socket.socket(socket.AF_UNIX)
        try:
            control.connect(str(self.path))
        except BaseException:
            control.close()
            raise
        return control

    async def greeted(self, token: bytes = TOKEN) -> ServerConnection:
        def broke(why: str) -> None:
            self.broken = why

        connection = ServerConnection("sandbox", self.connect(), broke, last_words_s=0.0)
        self.connections.append(connection)
        await connection.greet(token, limits=asdict(Limits()), seccomp=b"")
        return connection

    async def ended(self) -> int:
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), 10)


@pytest.fixture
async def running(waiting: Running) -> AsyncIterator[Running]:
    yield waiting
    for connection in waiting.connections:
        connection.close("the test is over")


@pytest.fixture
def waiting(place: Path) -> Iterator[Running]:
    bundle = server_bundle()
    program = place / bundle.name
    program.write_bytes(bundle.content)
    hold, theirs = socket.socketpair()
    ready, ready_theirs = os.pipe()
    hold.sendall(TOKEN)
    # bash puts the descriptors where the server looks for them
    start = f'exec "$@" {READY_FD}>&{ready_theirs} {HOLD_FD}<&{theirs.fileno()}'
    argv = ["bash", "-c", start, "start", sys.executable, "-I", "-S", "-B", str(program), str(place / "work/deep"), str(place / "s")]
    with theirs, hold:
        process = subprocess.Popen(
            argv, pass_fds=[theirs.fileno(), ready_theirs], stdin=subprocess.DEVNULL, env={"PATH": os.environ["PATH"]}
        )
        os.close(ready_theirs)
        try:
            theirs.close()
            assert os.read(ready, 1) == b"r"
            yield Running(process, hold, place / "s")
        finally:
            os.close(ready)
            process.kill()
            process.wait()


async def test_one_connection_with_the_token_and_no_second(running: Running, place: Path) -> None:
    connection = await running.greeted()

    assert not running.path.exists()
    with pytest.raises(FileNotFoundError):
        running.connect()
    assert (place / "work/deep").is_dir()
    connection.close("the test is over")
    assert await running.ended() == 1  # it does not outlive its connection


async def test_who_waits_in_line_is_not_served(running: Running) -> None:
    """Connections wait in the kernel before they are taken: the second is dropped with the listener."""
    running.process.send_signal(signal.SIGSTOP)
    first, second = running.connect(), running.connect()
    running.process.send_signal(signal.SIGCONT)

    with first, second:
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(asyncio.to_thread(second.recv, 1), 10) == b""
        first.sendall(b"x")


@pytest.mark.parametrize("token", [bytes(TOKEN_BYTES), TOKEN[:-1] + b"x", b""], ids=["zeros", "nearly", "none"])
async def test_a_wrong_token_is_its_end(running: Running, token: bytes) -> None:
    with pytest.raises(SandboxGone, match="ended"):
        await running.greeted(token)

    assert await running.ended() == 1


async def test_without_a_holder_it_ends(running: Running) -> None:
    await running.greeted()

    running.hold.close()

    assert await running.ended() == 0
    await wait_until(lambda: running.broken, "its worker has heard of it")


async def test_it_ends_with_its_holder_also_before_anybody_came(running: Running) -> None:
    running.hold.close()

    assert await running.ended() == 0


async def test_the_token_is_nowhere_to_be_read(running: Running) -> None:
    """Arguments and environment of a process can be read by others of its user, and are where such things end up by mistake."""
    told = (Path("/proc") / str(running.process.pid) / "cmdline").read_bytes()

    assert TOKEN not in told
    assert TOKEN.hex().encode() not in told
    if os.geteuid() != 0:
        with pytest.raises(PermissionError):
            (Path("/proc") / str(running.process.pid) / "environ").read_bytes()


async def test_what_is_started_ends_and_is_told_in_order(running: Running) -> None:
    """Short programs end before their start was heard of: the start is still told first."""
    connection = await running.greeted()
    null = os.open(os.devnull, os.O_RDWR)
    request = {"do": "run", "env": {"PATH": os.environ["PATH"]}, "cwd": "/", "fds": [0, 1, 2], "terminal": False}

    codes = []
    for number in range(20):
        _, _, ended = await connection.start({**request, "argv": ["sh", "-c", f"exit {number}"]}, [null] * 3)
        codes.append(await ended)
    with pytest.raises(FileNotFoundError):
        await connection.start({**request, "argv": ["no-such-program"]}, [null] * 3)
    with pytest.raises(FileNotFoundError, match="folder /none"):
        await connection.start({**request, "argv": ["sh"], "cwd": "/none"}, [null] * 3)
    _, pid, ended = await connection.start({**request, "argv": ["sleep", "60"]}, [null] * 3)
    os.kill(pid, signal.SIGKILL)

    assert codes == list(range(20))
    assert await ended == -signal.SIGKILL
    assert not running.broken
    os.close(null)


async def test_a_tree_is_killed_with_what_left_its_group(running: Running) -> None:
    connection = await running.greeted()
    alive, alive_theirs = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    script = "(set -m; sleep 60 & sleep 60 & wait) & (exec sleep 60) & echo >&3; wait"
    request = {"do": "run", "argv": ["bash", "-c", script], "env": {"PATH": os.environ["PATH"]}, "cwd": "/", "fds": [0, 1, 2, 3]}
    number, _, ended = await connection.start({**request, "terminal": False}, [null, null, null, alive_theirs])
    os.close(alive_theirs)
    assert await asyncio.to_thread(os.read, alive, 1) == b"\n"

    connection.kill(number, "tree", signal.SIGKILL)

    assert await ended == -signal.SIGKILL
    assert await asyncio.wait_for(asyncio.to_thread(os.read, alive, 1), 10) == b""  # nobody is left who holds it
    for descriptor in (alive, null):
        os.close(descriptor)


def test_the_zip_is_the_same_bytes_wherever_it_is_made() -> None:
    make = "from workers.sandbox.inside import server_bundle as b; import sys; sys.stdout.buffer.write(b().content)"
    other = subprocess.run(
        [sys.executable, "-c", make], env={**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}, capture_output=True, check=True
    )

    bundle = server_bundle()

    assert other.stdout == bundle.content
    assert bundle.name == f"{hashlib.sha256(bundle.content).hexdigest()[:32]}.pyz"


@pytest.mark.parametrize("module", MODULES)
def test_every_module_is_python_3_8(module: str) -> None:
    tree = ast.parse(source(module), feature_version=(3, 8))

    assert any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)


def test_an_old_python_gets_as_far_as_the_message() -> None:
    """No image with one is at hand: the version is what is changed."""
    program = f"import sys; sys.version_info = (3, 7, 9); exec({source(MAIN)!r})"

    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (3, "the execution server needs Python 3.8 or later, this is 3.7.9\n")
