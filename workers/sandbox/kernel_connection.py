"""One live kernel process and the messages to and from it, over Unix sockets in a folder shared with its sandbox.

The sandbox may have put anything into that folder: what is connected to is the very socket that was looked at, and no link is followed.

`jupyter_client` makes the connection and signs the messages; reading is done here, because a flood must cost little: of a message only
what is needed is parsed, and reading never stops, so that the kernel is never ahead of us for long.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import signal
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from workers.sandbox.capture import HeadTail
from workers.sandbox.errors import SessionStartError
from workers.sandbox.kernel_output import CellOutput
from workers.sandbox.launcher import LaunchedProcess, Launcher, SharedFolder

if TYPE_CHECKING:
    import zmq.asyncio
    from jupyter_client.connect import KernelConnectionInfo

    from workers.sandbox.kernel_client import KernelClient

BOOT_SCRIPT = Path(__file__).with_name("kernel_boot.py")

START_TIMEOUT_S = 25.0
"""A kernel is up in 0.3 s, with many starts at once in ten times that; less than the grace that a tool call has beyond its own limit."""
RESUBSCRIBE_S = 0.2
LISTEN_AGAIN_S = 5.0
LOG_BYTES = 4096
PUMP_SLICE_S = 0.005
Channel = Literal["iopub", "shell", "control"]
TAKERS: dict[Channel, str] = {"iopub": "_take_shown", "shell": "_take_reply", "control": "_take_control"}
DELIMITER = b"<IDS|MSG>"


@dataclass(slots=True)
class Cell:
    """A cell between its request and its two ends: the reply, and the kernel's word that it is idle again."""

    output: CellOutput
    reply: asyncio.Future[Mapping[str, Any]]
    idle: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProgram:
    """How a kernel is started in a sandbox, by the sandbox's own paths."""

    python: str
    boot_script: str

    def argv(self, connection_file: str, ready_fd: int) -> list[str]:
        return [self.python, "-I", self.boot_script, connection_file, str(ready_fd)]


class KernelConnection:
    """One kernel process, from its start to its end."""

    def __init__(self, launcher: Launcher, process: LaunchedProcess, log: _Log) -> None:
        self._launcher = launcher
        self._log = log
        self._client: KernelClient | None = None
        self._doors: dict[str, _Door] = {}
        self._channels: dict[Channel, tuple[Any, asyncio.Task[None]]] = {}
        self._cells: dict[str, Cell] = {}
        self._interrupts: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._heard = asyncio.Event()
        self.n_heard = 0
        self.process = process
        self.ended = asyncio.create_task(process.wait(), name=f"kernel {process.pid}")
        self.ended.add_done_callback(_retrieve)

    @classmethod
    async def start(
        cls,
        launcher: Launcher,
        program: KernelProgram,
        given: SharedFolder,
        sockets: SharedFolder,
        env: Mapping[str, str],
        cwd: str,
        context: zmq.asyncio.Context,
    ) -> KernelConnection:
        """Starts a kernel with sockets and a key of its own; returns when it takes cells.

        Raises:
            SessionStartError: it did not come up.
        """
        launcher.check_open()
        number = secrets.token_hex(4)
        shared = _new_connection()
        content = json.dumps({**shared, "ip": f"{sockets.inside}/{number}"}).encode()
        connection_file = await asyncio.to_thread(given.write, f"{number}.json", content)
        await asyncio.to_thread(_make, sockets)
        ready, ready_theirs = os.pipe()
        log = _Log()
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            process = await launcher.spawn(
                program.argv(connection_file, 3), env=env, cwd=cwd, fds={0: null, 1: log.write_end, 2: log.write_end, 3: ready_theirs}
            )
        except OSError as error:
            log.close()
            os.close(ready)
            raise SessionStartError("kernel", f"{program.python}: {error.strerror}") from error
        except BaseException:
            log.close()
            os.close(ready)
            raise
        finally:
            os.close(null)
            os.close(ready_theirs)
        log.begin()
        kernel = cls(launcher, process, log)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                if not await _byte_from(ready):
                    await asyncio.wait({kernel.ended}, timeout=1.0)
                    raise SessionStartError("kernel", "its process ended", log.text())
                await kernel._connect({**shared, "ip": number}, sockets, context)
        except TimeoutError:
            kernel.close()
            raise SessionStartError("kernel", f"no answer within {START_TIMEOUT_S:g} s", log.text()) from None
        except BaseException:
            kernel.close()
            raise
        finally:
            os.close(ready)
        await asyncio.to_thread(given.remove, f"{number}.json")
        return kernel

    @property
    def has_ended(self) -> bool:
        return self.ended.done()

    def how_it_ended(self) -> str:
        """For people and models; the process has ended."""
        code = self.ended.result()
        how = f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"
        last = self._log.text().strip()
        return f"The kernel's process ended with {how}." + (f"\n{last}" if last else "")

    def begin(self, code: str, output: CellOutput) -> Cell:
        """Sends a cell. `input()` raises in it at once: nobody would answer."""
        request = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        number = self._send("shell", "execute_request", request)
        self._cells.clear()  # what comes for earlier cells now (their threads) belongs to nobody
        cell = self._cells[number] = Cell(output, asyncio.get_running_loop().create_future())
        return cell

    def interrupt(self) -> asyncio.Future[Mapping[str, Any]]:
        """Asks the kernel to raise KeyboardInterrupt; the future is done when the signal has been sent, not sooner."""
        number = self._send("control", "interrupt_request", {})
        answered = self._interrupts[number] = asyncio.get_running_loop().create_future()
        return answered

    async def listen_again(self) -> bool:
        """Connects anew for output: a connection that lost messages may carry none any more. False when nothing is heard again."""
        self._close_channel("iopub")
        self._heard.clear()
        self._open_channel("iopub")
        try:
            async with asyncio.timeout(LISTEN_AGAIN_S):
                await self._hear_something()
        except (TimeoutError, SessionStartError):
            return False
        return True

    def close(self) -> None:
        """Kills the process, its children and its session; does not wait."""
        self._launcher.kill(self.process, "tree", signal.SIGKILL)
        for name in list(self._channels):
            self._close_channel(name)
        for door in self._doors.values():
            door.close()
        self._log.close()

    # -- messages -------------------------------------------------------------------------------------------------------------------

    async def _connect(self, connection: KernelConnectionInfo, sockets: SharedFolder, context: zmq.asyncio.Context) -> None:
        from workers.sandbox.kernel_client import KernelClient  # loaded by now, with `context`

        self._client = KernelClient(context=context)
        self._client.load_connection_info(connection)
        self._doors = await asyncio.to_thread(_open_doors, sockets, connection)
        self._client.paths = {channel: door.path for channel, door in self._doors.items()}
        for name in TAKERS:
            self._open_channel(name)
        await self._hear_something()

    async def _hear_something(self) -> None:
        """A subscription takes a moment to arrive: until something was heard, a cell's output could be lost."""
        while not self._heard.is_set():
            self._send("shell", "kernel_info_request", {})
            try:
                async with asyncio.timeout(RESUBSCRIBE_S):
                    await self._heard.wait()
            except TimeoutError:
                if self.ended.done():
                    raise SessionStartError("kernel", "its process ended", self._log.text()) from None

    def _open_channel(self, name: Channel) -> None:
        assert self._client is not None
        connect = {"iopub": self._client.connect_iopub, "shell": self._client.connect_shell, "control": self._client.connect_control}[name]
        socket = connect()
        socket.linger = 0
        pump = asyncio.create_task(self._pump(socket, getattr(self, TAKERS[name])), name=f"kernel {self.process.pid} {name}")
        self._channels[name] = (socket, pump)

    def _close_channel(self, name: Channel) -> None:
        socket, pump = self._channels.pop(name)
        pump.cancel()
        socket.close()

    def _send(self, channel: Channel, kind: str, content: dict[str, Any]) -> str:
        """Sends a request; returns the number that its answers carry.

        Through the socket itself: `Session.send` goes round it to the plain one below, which takes the wake-up that a reply just gave, and
        the reply is then not seen until another comes.
        """
        assert self._client is not None
        message = self._client.session.msg(kind, content)
        self._channels[channel][0].send_multipart(self._client.session.serialize(message))
        return str(message["header"]["msg_id"])

    async def _pump(self, socket: Any, take: Callable[[str, str, bytes], None]) -> None:
        assert self._client is not None
        session, loop = self._client.session, asyncio.get_running_loop()
        slice_end = loop.time() + PUMP_SLICE_S
        while True:
            frames: Sequence[bytes] = await socket.recv_multipart()
            if loop.time() > slice_end:  # a socket with messages in it is never waited for: let others have their turn
                await asyncio.sleep(0)
                slice_end = loop.time() + PUMP_SLICE_S
            try:
                at = frames.index(DELIMITER)
                signature, header, parent, metadata, content = frames[at + 1 : at + 6]
                if not hmac.compare_digest(session.sign([header, parent, metadata, content]), signature):
                    continue
                kind = json.loads(header)["msg_type"]
                number = json.loads(parent).get("msg_id", "")
                take(kind, number, content)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # not a message: cells can write to the kernel's sockets, and say anything

    def _take_shown(self, kind: str, number: str, content: bytes) -> None:
        self._heard.set()
        self.n_heard += 1
        cell = self._cells.get(number)
        if cell is None:
            return
        values = _parsed(content)
        if kind == "status":
            if values.get("execution_state") == "idle":
                cell.idle.set()
        else:
            cell.output.take(kind, values)

    def _take_reply(self, kind: str, number: str, content: bytes) -> None:
        cell = self._cells.get(number)
        if kind == "execute_reply" and cell is not None and not cell.reply.done():
            cell.reply.set_result(_parsed(content))

    def _take_control(self, kind: str, number: str, content: bytes) -> None:
        answered = self._interrupts.pop(number, None)
        if answered is not None and not answered.done():
            answered.set_result(_parsed(content))


class _Door:
    """A socket that was looked at, and the name by which just this one is connected to."""

    def __init__(self, path: str, descriptor: int = -1) -> None:
        self.path = path
        self._descriptor = descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _open_doors(sockets: SharedFolder, connection: KernelConnectionInfo) -> dict[str, _Door]:
    """Looks at the kernel's sockets: whether they are, and no link is on the way.

    Raises:
        SessionStartError: something else is there.
    """
    doors: dict[str, _Door] = {}
    try:
        with sockets.opened() as folder:
            for channel in TAKERS:
                name = f"{connection['ip']}-{connection[f'{channel}_port']}"  # type: ignore[literal-required]  # ports by channel
                if not stat.S_ISSOCK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise SessionStartError("kernel", f"{sockets.inside}/{name} is no socket")
                if sys.platform == "linux":
                    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
                    doors[channel] = _Door(f"/proc/self/fd/{descriptor}", descriptor)
                    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                        raise SessionStartError("kernel", f"{sockets.inside}/{name} is no socket")
                else:
                    doors[channel] = _Door(str(sockets.outside.joinpath(*sockets.below, name)))
    except BaseException as error:
        for door in doors.values():
            door.close()
        if isinstance(error, OSError):
            raise SessionStartError("kernel", f"its sockets cannot be reached: {error.strerror}") from error
        raise
    return doors


def _make(folder: SharedFolder) -> None:
    with folder.opened():
        pass


class _Log:
    """The kernel's own stdout and stderr: nothing, unless it crashes."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._kept = HeadTail(LOG_BYTES)
        self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        os.close(self.write_end)
        self.write_end = -1
        self._loop.add_reader(self._read_end, self._read)

    def text(self) -> str:
        if self._read_end >= 0:
            self._read()
        return self._kept.text()

    def close(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1
        if self._read_end >= 0:
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = -1

    def _read(self) -> None:
        try:
            data = os.read(self._read_end, 65536)
        except BlockingIOError:
            return
        if data:
            self._kept.feed(data)
        else:
            self.close()


def _new_connection() -> KernelConnectionInfo:
    """A connection with a key of its own; with `ipc` a port is the last part of a socket's name."""
    return {
        "transport": "ipc",
        "shell_port": 1,
        "iopub_port": 2,
        "stdin_port": 3,
        "control_port": 4,
        "hb_port": 5,
        "key": secrets.token_hex(16),
        "signature_scheme": "hmac-sha256",
        "kernel_name": "",
    }


async def _byte_from(descriptor: int) -> bytes:
    """The first byte of a pipe; empty when its other side was closed without one."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        loop.remove_reader(descriptor)
        readable.set_result(None)

    loop.add_reader(descriptor, ready)
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, 1)


def _parsed(content: bytes) -> Mapping[str, Any]:
    try:
        values = json.loads(content)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _retrieve(task: asyncio.Task[int]) -> None:
    if not task.cancelled():
        task.exception()
