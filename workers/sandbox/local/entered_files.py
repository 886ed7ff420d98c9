"""The worker's side of the file helper (`file_helper.py`): files of a sandbox with walls. Operations block, each in its thread.

The helper is started by the first operation and lives as long as the attachment: a sandbox whose files nobody asks for has none.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from workers.sandbox.errors import FileTrouble, SandboxError, SandboxFileError
from workers.sandbox.local.environment import library_paths
from workers.sandbox.local.files import check_path, entries
from workers.sandbox.local.holder_client import Holder
from workers.sandbox.pieces import PIECE_BYTES, pieces_of
from workers.sandbox.results import FileEntry

HELPER_SCRIPT = Path(__file__).with_name("file_helper.py")
START_TIMEOUT_S = 20.0
STILL_S = 60.0
"""On which nothing moves for so long, an operation is given up: its process hangs in the kernel, or something stopped it."""
PATH_BYTES = 16 * 1024
"""Four times what Linux takes: the answer comes from there, the frame must fit."""


READS = frozenset(("read", "list"))
"""Operations that change nothing."""


class _NothingCame(EOFError):
    """The helper ended before it answered anything."""


class _Unheard(SandboxError):
    """A read that its helper may never have heard. One that was killed still takes what is sent while somebody has its end of the channel,
    such as a child of the holder between fork and exec; a successor is asked the same once."""


class EnteredFiles:
    """The files of one sandbox.

    Args:
        folder: where relative paths start, inside.
    """

    def __init__(self, holder: Holder, folder: str) -> None:
        self._holder = holder
        self._folder = folder
        self._loop = asyncio.get_running_loop()
        self._control: socket.socket | None = None
        self._lock = threading.Lock()
        self._closed = False

    def read(self, path: str, max_bytes: int) -> bytes:
        content = bytearray()
        self._operate("read", path, max_bytes=max_bytes, take=content.extend)
        return bytes(content)

    def write(self, path: str, content: bytes, *, executable: bool) -> None:
        self._operate("write", path, executable=executable, give=pieces_of(content))

    def list(self, path: str) -> tuple[FileEntry, ...]:
        answer = self._operate("list", path)
        return entries([(os.fsdecode(bytes.fromhex(name)), kind, size) for name, kind, size in answer["entries"]])

    def upload(self, tar: IO[bytes], folder: str, max_bytes: int) -> None:
        self._operate("upload", folder, max_bytes=max_bytes, give=lambda: tar.read(PIECE_BYTES))

    def download(self, path: str, tar: IO[bytes], max_bytes: int) -> None:
        self._operate("download", path, max_bytes=max_bytes, take=tar.write)

    def close(self) -> None:
        """Ends the helper. Without the lock: whoever starts one may be waiting for this very thread."""
        self._closed = True
        control, self._control = self._control, None
        if control is not None:
            control.close()

    # -- one operation ------------------------------------------------------------------------------------------------------------------

    def _operate(
        self,
        operation: str,
        path: str,
        *,
        max_bytes: int = 0,
        executable: bool = False,
        give: Callable[[], bytes] | None = None,
        take: Callable[[bytes], Any] = lambda data: None,
    ) -> dict[str, Any]:
        check_path(path)
        try:
            return self._ask(operation, path, max_bytes, executable, give, take)
        except _Unheard:
            self._check_holder()
            return self._ask(operation, path, max_bytes, executable, give, take)
        except SandboxError:
            self._check_holder()  # which ends the helper when it ends, and is heard of later
            raise

    def _check_holder(self) -> None:
        """Has the holder run something: that ends, or the holder is ending, which raises `SandboxGone`. It takes in ends by order of birth:
        by then that of the helper too, and has seen whether the walls were falling."""
        with contextlib.suppress(OSError, TimeoutError):
            asyncio.run_coroutine_threadsafe(self._holder_runs(), self._loop).result(START_TIMEOUT_S)

    async def _holder_runs(self) -> None:
        process = await self._holder.spawn_outside(["/bin/sh", "-c", ":"], env={}, fds={})
        await process.wait()

    def _ask(
        self,
        operation: str,
        path: str,
        max_bytes: int,
        executable: bool,
        give: Callable[[], bytes] | None,
        take: Callable[[bytes], Any],
    ) -> dict[str, Any]:
        encoded = os.fsencode(path)
        if len(encoded) > PATH_BYTES:
            raise SandboxFileError(path[:100], "not_found", "the path is too long")
        request = {"op": operation, "path": encoded.hex(), "max_bytes": max_bytes, "executable": executable}
        ours, theirs = socket.socketpair()
        ours.settimeout(STILL_S)
        with ours:
            try:
                self._send(json.dumps(request).encode(), theirs)
            finally:
                theirs.close()
            try:
                if give is not None:
                    _give(ours, give)
                ours.shutdown(socket.SHUT_WR)
                answer = _take(ours, take)
            except (BrokenPipeError, ConnectionResetError, EOFError) as error:
                kind = _Unheard if operation in READS and isinstance(error, _NothingCame) else SandboxError
                raise kind(f"the process that works on the sandbox's files ended during {operation} of {path!r}") from error
            except TimeoutError as error:
                raise SandboxError(f"{operation} of {path!r}: nothing moved for {STILL_S:g} s, so it was given up") from error
        if "failed" in answer:
            raise SandboxError(f"{operation} of {path!r} failed: {answer['failed']}")
        if "trouble" in answer:
            raise SandboxFileError(path, cast(FileTrouble, answer["trouble"]), answer["detail"])
        return answer

    def _send(self, request: bytes, connection: socket.socket) -> None:
        rights = array.array("i", [connection.fileno()])
        with self._lock:
            for last in (False, True):
                control = self._control
                if control is None:
                    control = self._control = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(START_TIMEOUT_S)
                if self._closed:
                    control.close()
                try:
                    control.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                    return
                except OSError as error:  # the helper was killed since it was last asked, and has not heard this
                    self._control = None
                    control.close()
                    if last or self._closed:
                        raise SandboxError("the process that works on the sandbox's files has ended") from error

    async def _start(self) -> socket.socket:
        keeper = self._holder.keeper
        if keeper is None:
            raise SandboxError("the sandbox has no PID 1 whose mounts could be joined")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        null = os.open(os.devnull, os.O_WRONLY)
        heard: bytes | BaseException = b""
        said, said_theirs = os.pipe()
        try:
            argv = [sys.executable, "-I", "-S", str(HELPER_SCRIPT), str(keeper.pid), self._folder]
            await self._holder.spawn_outside(argv, env=library_paths(), fds={0: theirs.fileno(), 1: null, 2: said_theirs})
            os.close(said_theirs)
            said_theirs = -1
            theirs.close()
            ours.setblocking(False)
            async with asyncio.timeout(START_TIMEOUT_S):
                heard = await self._loop.sock_recv(ours, 16)
            if heard != b"ready":
                text = (await asyncio.to_thread(os.read, said, 4000)).decode("utf-8", "replace").strip()
                raise SandboxError(f"the sandbox's files cannot be reached: {text or 'its helper ended at once'}")
        except BaseException as error:
            ours.close()
            if isinstance(error, (OSError, TimeoutError)):
                raise SandboxError(f"the sandbox's files cannot be reached: {error!r}") from error
            raise
        finally:
            theirs.close()
            os.close(null)
            os.close(said)
            if said_theirs >= 0:
                os.close(said_theirs)
        ours.setblocking(True)
        return ours


def _give(connection: socket.socket, give: Callable[[], bytes]) -> None:
    """Sends what there is; the other side takes all of it, also when it has refused it."""
    while piece := give():
        connection.sendall(piece)


def _take(connection: socket.socket, take: Callable[[bytes], Any]) -> dict[str, Any]:
    """Hands the pieces on until the answer comes."""
    with connection.makefile("rb", buffering=PIECE_BYTES) as incoming:
        nothing_came = True
        while True:
            head = incoming.read(5)
            if not head and nothing_came:
                raise _NothingCame
            nothing_came = False
            if len(head) < 5:
                raise EOFError
            (length,) = struct.unpack(">I", head[:4])
            data = incoming.read(length)
            if len(data) < length:
                raise EOFError
            if head[4:] == b"d":
                take(data)
            else:
                answer: dict[str, Any] = json.loads(data)
                return answer
