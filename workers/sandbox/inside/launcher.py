"""The `Launcher` over an execution server, and how its connection is made.

Pipes and terminals are made here and their ends sent in, so what programs say comes through the kernel and not through the server.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import secrets
import socket
import stat
import struct
import termios
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

from workers.sandbox.errors import SandboxError, SandboxGone, SandboxStartError
from workers.sandbox.inside.bundle import server_bundle
from workers.sandbox.inside.connection import InsideProcess, ServerConnection
from workers.sandbox.inside.guest.frames import TOKEN_BYTES
from workers.sandbox.launcher import KillScope, LaunchedProcess, SharedFolder
from workers.sandbox.spec import Limits

NEEDS_PYTHON = (
    "its execution server needs python3, 3.8 or later, in the image: use an image that has it, or sandbox.entry = outside, which needs none"
)
CONNECT_S = 10.0
TIOCGSID = getattr(termios, "TIOCGSID", 0x5429)


def is_without_python(why: str) -> bool:
    """Whether walls do not stand because nothing runs our program; `why` is what their command said."""
    return "needs Python 3.8" in why or ("python3" in why and ("No such file" in why or "not found" in why))


class ServerBoot:
    """What one start of an execution server needs: its program, the name of its socket, its token. Blocks.

    Args:
        given: where the program is written, read-only inside.
        sockets: where the server listens.
    """

    def __init__(self, given: SharedFolder, sockets: SharedFolder) -> None:
        bundle = server_bundle()
        self._program = given.write(bundle.name, bundle.content)
        self._sockets = sockets
        self._name = secrets.token_hex(8)
        self.token = secrets.token_bytes(TOKEN_BYTES)
        sockets.outside.chmod(0o700)  # an earlier attachment may have closed it

    def argv(self, python: Sequence[str], workdir: str) -> list[str]:
        """The command line of PID 1, which begins with `python`."""
        return [*python, "-I", "-S", "-B", self._program, workdir, f"{self._sockets.inside}/{self._name}"]

    def connect(self) -> socket.socket:
        """To the very socket that was looked at, and through no link: what lies in that folder may be of an earlier attachment's making.

        Raises:
            OSError: nobody listens.
        """
        with self._sockets.opened() as folder:
            seen = os.open(self._name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
        control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if not stat.S_ISSOCK(os.fstat(seen).st_mode):
                raise OSError(f"{self._sockets.inside}/{self._name} is no socket")
            control.settimeout(CONNECT_S)  # one that listens and never takes us would hold us for ever
            control.connect(f"/proc/self/fd/{seen}")
        except BaseException:
            control.close()
            raise
        finally:
            os.close(seen)
        return control


class Above(Protocol):
    """The holder of the sandbox, as far as it matters here."""

    @property
    def gone(self) -> asyncio.Future[str]: ...

    @property
    def is_ending(self) -> bool: ...

    def check_open(self) -> None: ...

    def end_because(self, why: str) -> None:
        """Orders the end at once."""


class InsideLauncher:
    """Starts and ends processes by way of the server that is PID 1 of the sandbox."""

    def __init__(self, sandbox_id: str, holder: Above, control: socket.socket) -> None:
        self._holder = holder
        self.gone = holder.gone
        self.connection = ServerConnection(sandbox_id, control, self._end, lambda: holder.is_ending)
        holder.gone.add_done_callback(lambda gone: self.connection.close(gone.result()))

    @classmethod
    async def connect(
        cls, sandbox_id: str, backend: str, holder: Above, boot: ServerBoot, limits: Limits, seccomp: bytes
    ) -> InsideLauncher:
        """Takes the one connection that the server of these walls will ever have.

        Raises:
            SandboxStartError: it does not answer as ours does.
        """
        try:
            launcher = cls(sandbox_id, holder, await asyncio.to_thread(boot.connect))
            await launcher.connection.greet(boot.token, limits=asdict(limits), seccomp=seccomp)
        except (OSError, SandboxGone) as error:
            raise SandboxStartError(backend, f"its execution server does not answer: {getattr(error, 'why', error)}") from error
        return launcher

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, fds: Mapping[int, int]) -> LaunchedProcess:
        request = {"do": "run", "argv": list(argv), "env": dict(env), "cwd": cwd, "fds": list(fds), "terminal": False}
        number, pid, ended = await self.connection.start(request, list(fds.values()))
        return InsideProcess(number, pid, ended)

    async def spawn_pty(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, rows: int, columns: int, fds: Mapping[int, int]
    ) -> tuple[LaunchedProcess, int]:
        master, slave = os.openpty()
        try:
            fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            attributes = termios.tcgetattr(slave)
            attributes[3] &= ~termios.ECHO
            termios.tcsetattr(slave, termios.TCSANOW, attributes)
            places = {0: slave, 1: slave, 2: slave, **fds}
            request = {"do": "run", "argv": list(argv), "env": dict(env), "cwd": cwd, "fds": list(places), "terminal": True}
            number, pid, ended = await self.connection.start(request, list(places.values()))
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        return InsideProcess(number, _session_leader(master) or pid, ended), master

    async def start_on_files(self, request: Mapping[str, object], connection: int) -> int:
        """Has an operation on files begun, on a socket of its own; returns its number.

        Raises:
            SandboxError: no process could be started for it.
        """
        try:
            number, _, _ = await self.connection.start({"do": "files", "fds": [0], **request}, [connection])
        except OSError as error:
            raise SandboxError(f"no process for the sandbox's files can be started: {error.strerror}") from error
        return number

    async def check_server(self) -> None:
        """Returns when the server has answered; raises `SandboxGone` when it does not, also when that was not known yet."""
        await self.connection.start({"do": "nothing", "fds": []}, [])

    def check_open(self) -> None:
        self.connection.check_open()
        self._holder.check_open()

    def kill(self, process: LaunchedProcess, scope: KillScope, number: int) -> None:
        assert isinstance(process, InsideProcess)
        self.connection.kill(process.number, scope, int(number))

    def _end(self, why: str) -> None:
        """Without its server a sandbox is of no use, and one that lies is to be trusted with nothing more."""
        self._holder.end_because(why)


def _session_leader(master: int) -> int:
    """Who a terminal belongs to, by the node's number; 0 when the kernel does not say."""
    number = array.array("i", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(master, TIOCGSID, number)
    return number[0]
