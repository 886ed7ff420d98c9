"""The worker's side of a holder: starts it, asks it for processes, hears how they end.

Nothing here waits while writing: frames go out at once or when the socket takes them again, so a cancelled caller never leaves half a
frame. A process whose caller was cancelled between request and answer is killed when the answer comes.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import ptyprocess

from workers.sandbox.errors import SandboxGone, SandboxStartError
from workers.sandbox.launcher import KillScope, LaunchedProcess
from workers.sandbox.limits.process_table import read_process
from workers.sandbox.local.backend import Walls
from workers.sandbox.local.environment import library_paths
from workers.sandbox.local.identity import ProcessIdentity, identify
from workers.sandbox.spec import Limits

HOLDER_PROGRAM = Path(__file__).with_name("holder")
START_TIMEOUT_S = 30.0
"""A holder is up in some 20 ms; a machine that needs this long is not one to start sandboxes on."""
BOOT_TIMEOUT_S = 60.0
"""Walls stand in 10 ms (bubblewrap) to some 100 (Apptainer); seconds where a node starts many at once, or mounts an image file."""
MAX_FDS_A_FRAME = 16
SAID_BYTES = 2000
"""So much of what a holder said last goes into an error."""


class HeldProcess:
    """A process under the holder."""

    def __init__(self, pid: int, ended: asyncio.Future[int]) -> None:
        self.pid = pid
        self._ended = ended

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() and not self._ended.exception() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)


class Holder:
    """One holder process and everything under it."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._sandbox_id = ""
        self._process = process
        self._control = control
        self._limits: dict[str, Any] = {}
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[str] = self._loop.create_future()
        self.keeper: ProcessIdentity | None = None
        """PID 1 of the sandbox, by the node's numbers; None without walls."""
        self.groups: Sequence[str] = ()
        """The files by which what is started joins the sandbox's control groups."""
        self.bounds: frozenset[str] = frozenset()
        """What the kernel bounds of the sandbox as a whole, once its walls stand (`holder/bounding.py`)."""
        self.is_ending = False
        """Whether its end was ordered."""
        self._why = ""
        self._walls_ended = False
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._next_id = 0
        self._answers: dict[int, asyncio.Future[tuple[HeldProcess, int]]] = {}
        self._abandoned: set[int] = set()
        self._ended: dict[int, asyncio.Future[int]] = {}
        self._received = bytearray()
        self._descriptors: deque[int] = deque()
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()
        self._reaping: asyncio.Future[None] | None = None
        self.reaped_cpu_s = 0.0
        """CPU seconds of all that ran under it, once it has ended; on Linux."""
        control.setblocking(False)
        self._loop.add_reader(control.fileno(), self._read)

    @classmethod
    async def start(
        cls, sandbox_id: str, *, leases: Sequence[int], children_file: Path, log_file: Path, limits: Limits, spare: Holder | None = None
    ) -> Holder:
        """A holder of this sandbox, which keeps the descriptors `leases` open as long as it lives; the caller closes its own copies.

        Args:
            spare: one that is up and belongs to no sandbox yet; without it one is launched.

        Raises:
            FileNotFoundError: the folder of the sandbox is gone.
            SandboxStartError: it did not come up.
        """
        holder = spare or await cls.launch()
        try:
            with await asyncio.to_thread(log_file.open, "ab") as log:
                await holder._hold(sandbox_id, [*leases, log.fileno()], children_file, limits)
        except SandboxGone as error:
            await holder.wait_ended()
            raise SandboxStartError("process", f"its holder ended at once: {error.why}") from error
        except asyncio.CancelledError:
            holder._lost("its start was cancelled")
            raise
        except BaseException:
            holder.begin_end(0.0)
            await holder.wait_ended()
            raise
        return holder

    @classmethod
    async def launch(cls) -> Holder:
        """A holder that is up and belongs to no sandbox yet. It ends with us, however we end.

        Raises:
            SandboxStartError: it did not come up.
        """
        with tempfile.TemporaryFile() as said:
            launching = asyncio.create_task(cls._launch(said), name="launch a holder")
            try:
                holder = await asyncio.shield(launching)
            except OSError as error:
                raise SandboxStartError("process", f"its holder could not be started: {error}") from error
            except asyncio.CancelledError:
                launching.add_done_callback(_let_go)
                raise
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    signs: set[asyncio.Future[Any]] = {holder._ready, holder.gone}
                    await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
            except TimeoutError:
                holder._process.kill()
                await holder.wait_ended()
                raise SandboxStartError("process", f"its holder gave no sign for {START_TIMEOUT_S:g} s") from None
            except asyncio.CancelledError:
                holder._lost("its start was cancelled")
                raise
            if not holder._ready.done():
                await holder.wait_ended()
                tail = os.pread(said.fileno(), SAID_BYTES, max(0, os.fstat(said.fileno()).st_size - SAID_BYTES))
                raise SandboxStartError("process", f"its holder ended at once: {tail.decode('utf-8', 'replace')}")
            return holder

    @classmethod
    async def _launch(cls, said: IO[bytes]) -> Holder:
        """Never cancelled, so that a process that was started is always one we know."""
        argv = [sys.executable, "-I", "-S", str(HOLDER_PROGRAM), str(Path(ptyprocess.__file__).parent.parent), str(os.getpid())]
        ours, theirs = socket.socketpair()

        def launch() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=said,
                stderr=said,
                cwd="/",
                env=library_paths(),
                start_new_session=True,  # a Ctrl-C for the worker is the worker's to handle
            )

        try:
            process = await asyncio.to_thread(launch)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, ours)

    async def _hold(self, sandbox_id: str, given: Sequence[int], children_file: Path, limits: Limits) -> None:
        """Gives it to a sandbox, once: `given` are the leases, and the log last."""
        self._sandbox_id = sandbox_id
        self._limits = asdict(limits)
        itself, _ = await self._request({"op": "hold", "children_file": str(children_file)}, dict(enumerate(given)))
        del self._ended[itself.pid]

    @property
    def identity(self) -> ProcessIdentity | None:
        return identify(self._process.pid)

    async def boot(self, walls: Walls, seccomp: bytes, *, told: bytes = b"", entered: bool = True) -> None:
        """Builds the walls; what is spawned afterwards is spawned behind them.

        Args:
            seccomp: the filter of what enters; empty = none.
            told: what PID 1 is told through the socket it lives by.
            entered: whether they will be; else PID 1 starts what runs behind them.

        Raises:
            OSError: they do not stand; says what their command said.
        """
        given: dict[int, int] = {}
        try:
            for place, content in walls.given.items():
                given[place] = os.memfd_create("given")
                os.write(given[place], content)
                os.lseek(given[place], 0, os.SEEK_SET)
            frame = {"op": "boot", "argv": list(walls.argv), "env": dict(walls.env), "seccomp": seccomp.hex(), "timeout_s": BOOT_TIMEOUT_S}
            frame |= {"told": told.hex(), "entered": entered, "overlay": walls.overlay.words if walls.overlay else []}
            process, _ = await self._request(frame, given)
        finally:
            for number in given.values():
                os.close(number)
        self.keeper = identify(process.pid)

    async def spawn_outside(self, argv: Sequence[str], *, env: Mapping[str, str], fds: Mapping[int, int]) -> LaunchedProcess:
        """Starts a program of ours that serves this sandbox from outside of its walls, and ends with it."""
        process, _ = await self._request({"op": "spawn", "argv": list(argv), "env": dict(env), "cwd": "/", "outside": True}, fds)
        return process

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, fds: Mapping[int, int]) -> LaunchedProcess:
        process, _ = await self._request({"op": "spawn", "argv": list(argv), "env": dict(env), "cwd": cwd}, fds)
        return process

    async def spawn_pty(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, rows: int, columns: int, fds: Mapping[int, int]
    ) -> tuple[LaunchedProcess, int]:
        request = {"op": "pty", "argv": list(argv), "env": dict(env), "cwd": cwd, "rows": rows, "columns": columns}
        return await self._request(request, fds)

    def check_open(self) -> None:
        """Raises `SandboxGone` when it has ended."""
        if self.gone.done():
            raise SandboxGone(self._sandbox_id, self.gone.result())

    def kill(self, process: LaunchedProcess, scope: KillScope, number: int) -> None:
        self._post({"op": "kill", "pid": process.pid, "signal": int(number), "scope": scope})

    def begin_end(self, grace_s: float) -> None:
        """Orders the end of everything, the holder last."""
        self.is_ending = True
        self._post({"op": "stop", "grace_s": grace_s})

    def end_because(self, why: str) -> None:
        """Orders the end at once; `gone` says why, unless it has ended by itself."""
        if not self.is_ending:
            self._why = why
            self.begin_end(0.0)

    async def wait_ended(self) -> None:
        """Returns when the holder has ended, and so everything under it."""
        await asyncio.shield(self.gone)
        if self._reaping is not None:
            await asyncio.shield(self._reaping)

    def _reap(self) -> None:
        """Waits for its end. Until we have taken note of that, its line in the process table says what all its children used."""
        if sys.platform == "linux":
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            ended = read_process(self._process.pid)
            self.reaped_cpu_s = ended.reaped_cpu_s if ended else 0.0
        self._process.wait()

    @property
    def left_nothing(self) -> bool:
        """Whether it ended of its own accord, which it does only when no descendant is left."""
        return self._process.returncode == 0

    # -- frames -----------------------------------------------------------------------------------------------------------------

    async def _request(self, frame: dict[str, Any], fds: Mapping[int, int]) -> tuple[HeldProcess, int]:
        self.check_open()
        self._next_id += 1
        number = self._next_id
        answer: asyncio.Future[tuple[HeldProcess, int]] = self._loop.create_future()
        self._answers[number] = answer
        self._post({**frame, "id": number, "fds": list(fds), "limits": self._limits, "groups": list(self.groups)}, list(fds.values()))
        try:
            return await answer
        except asyncio.CancelledError:
            if self._answers.pop(number, None) is not None:
                self._abandoned.add(number)
            elif not answer.cancelled() and not answer.exception():  # it came in the very moment we were cancelled
                self._discard(*answer.result())
            raise

    def _post(self, frame: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        if self.gone.done():
            return
        payload = json.dumps(frame).encode()
        data = struct.pack(">I", len(payload)) + payload
        self._outgoing.append((data, [os.dup(number) for number in descriptors]))
        if len(self._outgoing) == 1:
            self._write()

    def _write(self) -> None:
        while self._outgoing:
            data, descriptors = self._outgoing[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            try:
                sent = self._control.sendmsg([data], rights)
            except BlockingIOError:
                self._loop.add_writer(self._control.fileno(), self._write)
                return
            except OSError:  # it has ended: the reader tells
                break
            for number in descriptors:
                os.close(number)
            if sent < len(data):
                self._outgoing[0] = (data[sent:], [])
            else:
                self._outgoing.popleft()
        self._loop.remove_writer(self._control.fileno())

    def _read(self) -> None:
        """All that is there, to its end: a holder that ends over an unread frame of ours leaves an error on the socket, and where its last
        words lie before that, uvloop calls once for both and then never again."""
        while not self.gone.done() and self._take_in():
            pass

    def _take_in(self) -> bool:
        """What comes at once; whether something did."""
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        try:
            data, ancillary, _, _ = self._control.recvmsg(65536, socket.CMSG_SPACE(MAX_FDS_A_FRAME * 4), flags)
        except BlockingIOError:
            return False
        except OSError:
            data, ancillary = b"", []
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(payload[: len(payload) // numbers.itemsize * numbers.itemsize])
                for number in numbers:
                    os.set_inheritable(number, False)
                    self._descriptors.append(number)
        if not data:
            self._lost("PID 1 of it was killed" if self._walls_ended else "the process that held it ended")
            return False
        self._received += data
        while len(self._received) >= 4:
            (length,) = struct.unpack_from(">I", self._received)
            if len(self._received) < 4 + length:
                break
            frame = json.loads(self._received[4 : 4 + length])
            del self._received[: 4 + length]
            self._hear(frame)
        return True

    def _hear(self, frame: dict[str, Any]) -> None:
        event = frame.get("event")
        if event == "exit":
            ended = self._ended.pop(frame["pid"], None)
            if ended is not None:
                ended.set_result(frame["code"])
        elif event == "walls_ended":
            self._walls_ended = True
        elif event == "ready":
            self._ready.set_result(None)
        elif event is None:
            self._hear_answer(frame)

    def _hear_answer(self, frame: dict[str, Any]) -> None:
        number = frame["id"]
        answer = self._answers.pop(number, None)
        if "errno" in frame:
            self._abandoned.discard(number)
            if answer is not None and not answer.done():
                answer.set_exception(OSError(frame["errno"], frame["error"]))
            return
        pid = frame["pid"]
        self.bounds |= frozenset(frame.get("bounds", ()))
        descriptor = self._descriptors.popleft() if frame["fds"] else -1
        ended = self._ended[pid] = self._loop.create_future()
        process = HeldProcess(pid, ended)  # made here: that it has ended may be the next frame
        if answer is not None and not answer.done():
            answer.set_result((process, descriptor))
        else:
            self._abandoned.discard(number)
            self._discard(process, descriptor)

    def _discard(self, process: HeldProcess, descriptor: int) -> None:
        self.kill(process, "tree", signal.SIGKILL)
        if descriptor >= 0:
            os.close(descriptor)

    def _lost(self, why: str) -> None:
        if self.gone.done():
            return
        self._loop.remove_reader(self._control.fileno())
        self._loop.remove_writer(self._control.fileno())
        self._control.close()
        self.gone.set_result(self._why or why)
        self._reaping = self._loop.run_in_executor(None, self._reap)
        for _, descriptors in self._outgoing:
            for number in descriptors:
                os.close(number)
        self._outgoing.clear()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        waiting: list[asyncio.Future[Any]] = [*self._answers.values(), *self._ended.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(SandboxGone(self._sandbox_id, why))
                future.exception()  # read: nobody may be waiting for this one
        self._answers.clear()
        self._ended.clear()


def _let_go(launching: asyncio.Task[Holder]) -> None:
    if not launching.cancelled() and launching.exception() is None:
        launching.result()._lost("its start was cancelled")
