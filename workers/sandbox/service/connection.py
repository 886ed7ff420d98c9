"""The service's end of one connection: a greeting, then calls, at most one sandbox, and its end when the connection ends.

1. Before the greeting is right nothing is done, and little is read: the token is compared, then the peer is somebody.
2. A connection has at most one sandbox in its life. When it ends, every call that runs is cancelled, and a sandbox that was neither parked
   nor stopped ends (`NodeSandboxes.lose`).
3. Nothing that comes over a connection can end another one, or the service: what a call raises is its answer.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import struct
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import IO, Protocol, cast

import structlog

from pipeline import codec
from pipeline.errors import RollstreamError
from workers.sandbox.base import Sandbox
from workers.sandbox.errors import FileTrouble, SandboxFileError, SandboxGone, SandboxRefused, SandboxTaken
from workers.sandbox.file_tree import TROUBLES
from workers.sandbox.service.node import Attachment, NodeSandboxes, Worker
from workers.sandbox.service.operations import OPERATIONS
from workers.sandbox.service.peer import PATIENCE, MessageTooLarge, Patience, Peer
from workers.sandbox.service.wire import (
    CANCELLED,
    CHUNK_BYTES,
    FAILED,
    HELLO_BYTES,
    INVALID,
    MAX_CALLS,
    MAX_ENDS,
    MAX_FRAME_BYTES,
    VERSION,
    WINDOW,
    Message,
    WireError,
    error_to_map,
)
from workers.sandbox.spec import SandboxHandle, SandboxOwner, SandboxSpec, Snapshot

log = structlog.get_logger(__name__)

STREAMED = frozenset({"upload", "download"})
TAR_ROOM_BYTES = 512 * 1024 * 1024
"""What the headers of an archive may take beside its content."""


class Service(Protocol):
    """What a connection needs of the service it belongs to."""

    @property
    def node(self) -> NodeSandboxes: ...

    @property
    def token(self) -> str: ...

    def hello(self) -> Message:
        """What a peer is told of the node."""

    def admit(self, connection: Connection) -> str:
        """Takes a connection in; answers why not when there are too many."""

    def leave(self, connection: Connection) -> None:
        """A connection has ended."""

    @property
    def spool_folder(self) -> Path:
        """Where archives lie on their way."""


class Connection(Peer):
    """One peer."""

    def __init__(self, service: Service, patience: Patience = PATIENCE) -> None:
        super().__init__(HELLO_BYTES, takes_parts=False, patience=patience)
        self.node = service.node
        self.worker = Worker(boot="", pid=0, fleet="")
        self.attachment: Attachment | None = None
        self._service = service
        self._greeted = False
        self._bound = False
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._streams: dict[int, _Stream] = {}
        self._hello_timer: asyncio.TimerHandle | None = None

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of this connection.

        Raises:
            ValueError: it has none.
        """
        if self.attachment is None:
            raise ValueError("this connection has no sandbox: start or attach comes first")
        return self.attachment.sandbox

    # -- the connection ----------------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        refused = self._service.admit(self)
        if refused:
            self._refuse(refused)
            return
        hello_s = self.patience.hello_s
        self._hello_timer = self._loop.call_later(hello_s, self._refuse, f"no hello within {hello_s:g} s")

    def on_message(self, message: Message) -> None:
        if not self._greeted:
            self._greet(message)
            return
        number, op = message.get("id"), message.get("op")
        if op is not None:
            self._begin(number, str(op), message)
        elif "cancel" in message:
            self._cancel(message["cancel"])
        elif isinstance(number, int):
            stream = self._streams.get(number)
            if stream is not None:  # what is still on its way to a call that has ended means nothing
                stream.take(message)
        else:
            raise WireError("a frame that is no call, no cancel and no part of one")

    def on_bad_peer(self, why: str) -> None:
        log.warning("bad_peer", why=why, pid=self.worker.pid, greeted=self._greeted)
        self.post({"error": {"kind": INVALID, "text": why}})

    def on_end(self) -> None:
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        for call in self._calls.values():
            call.cancel()
            self.node.wind_up(call)
        if self.attachment is not None:
            self.node.lose(self.attachment)
        self._service.leave(self)

    def _greet(self, message: Message) -> None:
        given, version = message.get("token"), message.get("hello")
        if version != VERSION:
            raise WireError(f"hello of version {version!r}, this service speaks {VERSION}")
        if not isinstance(given, str) or not hmac.compare_digest(given.encode("utf-8", "replace"), self._service.token.encode()):
            raise WireError("wrong token")
        boot, fleet = message.get("boot", ""), message.get("fleet", "")
        if not isinstance(boot, str) or not isinstance(fleet, str):
            raise WireError("boot and fleet should be texts")
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._greeted = True
        self.decoder.limit, self.takes_parts = MAX_FRAME_BYTES, True
        self.worker = Worker(boot=boot, pid=self._peer_pid(), fleet=fleet)
        self.post({"hello": VERSION, **self._service.hello()})

    def _peer_pid(self) -> int:
        if sys.platform != "linux" or self._transport is None:
            return 0
        found = self._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return cast(int, struct.unpack("3i", found)[0])

    # -- calls --------------------------------------------------------------------------------------------------------------------------

    def _begin(self, number: object, op: str, message: Message) -> None:
        if type(number) is not int or number <= 0 or number in self._calls:
            raise WireError(f"a call with id {number!r}, expected a positive number that no running call has")
        if len(self._calls) >= MAX_CALLS + MAX_ENDS:
            raise WireError(f"more than {MAX_CALLS} calls at once")
        if op in STREAMED:
            self._streams[number] = _Stream()  # its chunks may come in this very read
        call = self._calls[number] = self._loop.create_task(self._call(number, op, message), name=op)
        call.add_done_callback(lambda _: self._ended_call(number))

    def _cancel(self, number: object) -> None:
        if type(number) is not int:
            raise WireError(f"a cancel of {number!r}, expected the number of a call")
        running = self._calls.get(number)
        if running is not None:
            running.cancel()
        else:  # it never came, or its answer is on the way: then this one is not looked at
            self._post_cancelled(number)

    def _post_cancelled(self, number: int) -> None:
        self.post({"id": number, "error": {"kind": CANCELLED, "text": "the call was cancelled"}})

    def _ended_call(self, number: int) -> None:
        """A task that is cancelled before its first step never takes it: so its end is seen to here, not in it."""
        call = self._calls.pop(number)
        self._streams.pop(number, None)
        if call.cancelled():
            self._post_cancelled(number)
        elif (error := call.exception()) is not None:
            raise error  # a fault of ours; the event loop says it, and nobody waits for the answer for ever

    async def _call(self, number: int, op: str, message: Message) -> None:
        """Runs one call and answers it, whatever comes of it."""
        answer: Message
        try:
            answer = {"id": number, "ok": _plain(await self._awaitable(op, message))}
        except asyncio.CancelledError:
            self._post_cancelled(number)
            return
        except RollstreamError as error:
            self.node.note_leak(error)
            answer = {"id": number, "error": error_to_map(self._as_seen_here(error))}
        except ValueError as error:
            answer = {"id": number, "error": {"kind": INVALID, "text": str(error)}}
        except Exception as error:  # a fault of ours must not take the connection, and with it the sandbox
            log.exception("call_failed", op=op)
            answer = {"id": number, "error": _fault(op, error)}
        try:
            await self.send(answer)
        except asyncio.CancelledError:
            self._post_cancelled(number)
        except MessageTooLarge as error:
            self.post({"id": number, "error": error_to_map(SandboxFileError(str(message.get("path", op)), "too_large", str(error)))})
        except (TypeError, ValueError, OverflowError) as error:  # it holds what cannot travel
            log.exception("answer_not_sent", op=op)
            self.post({"id": number, "error": _fault(op, error)})

    def _as_seen_here(self, error: RollstreamError) -> RollstreamError:
        """What is gone because the node ended it was not ended by what runs in it, and must not look so."""
        if type(error) is SandboxGone and self.attachment is not None and self.attachment.why:
            return SandboxTaken(error.sandbox_id, self.attachment.why)
        return error

    def _awaitable(self, op: str, message: Message) -> Awaitable[object]:
        operation = OPERATIONS.get(op)
        if operation is None:
            raise ValueError(f"unknown operation {op!r}")
        return operation(self, message)

    # -- operations that are about the connection itself ----------------------------------------------------------------------------------

    async def start(self, spec: SandboxSpec, owner: SandboxOwner) -> Message:
        """Makes the sandbox of this connection."""
        return await self._bind(lambda: self.node.start(spec, owner, self.worker, self._on_gone))

    async def attach(self, handle: SandboxHandle, owner: SandboxOwner) -> Message:
        """Takes a parked sandbox over."""
        return await self._bind(lambda: self.node.attach(handle, owner, self.worker, self._on_gone))

    async def restore(self, snapshot: Snapshot, owner: SandboxOwner) -> Message:
        """Makes a sandbox that begins from a snapshot."""
        return await self._bind(lambda: self.node.restore(snapshot, owner, self.worker, self._on_gone))

    async def snapshot(self) -> Snapshot:
        """Keeps the files of the sandbox of this connection."""
        sandbox = self.sandbox
        return await self.node.snapshot(sandbox, self.worker)

    async def _bind(self, making: Callable[[], Awaitable[Attachment]]) -> Message:
        if self._bound:
            raise SandboxRefused("", "this connection has, or had, a sandbox: each has its own connection")
        self._bound = True
        try:
            self.attachment = await making()
        except BaseException:
            self._bound = False
            raise
        sandbox = self.attachment.sandbox
        return {"handle": sandbox.handle.to_map(), "workdir": sandbox.workdir}

    def tell_health(self, why: str) -> None:
        """The node has become degraded, or is well again."""
        if self._greeted:
            self.post({"degraded": why})

    def release(self) -> None:
        """The sandbox was parked or stopped: it is nothing of this connection any more."""
        self.attachment = None

    def _on_gone(self, why: str, taken: bool) -> None:
        self.post({"gone": why, "taken": int(taken)})

    async def upload(self, number: int, folder: str, max_bytes: int) -> None:
        """Takes an archive in, then unpacks it: no thread waits for a peer, who may be slow."""
        sandbox = self.sandbox
        stream = self._streams[number]
        with self._spool() as spool:
            size = 0
            while (chunk := await stream.next()) is not None:
                size += len(chunk)
                if size > max_bytes + TAR_ROOM_BYTES:
                    raise SandboxFileError(folder, "too_large", f"more than {max_bytes:,} bytes")
                try:
                    await asyncio.to_thread(spool.write, chunk)
                except OSError as error:
                    trouble = cast(FileTrouble, TROUBLES.get(error.errno or 0, "denied"))
                    raise SandboxFileError(folder, trouble, f"on its way: {error.strerror}") from error
                self.post({"id": number, "took": 1})
            await asyncio.to_thread(spool.seek, 0)
            await sandbox.upload(spool, folder, max_bytes=max_bytes)

    async def download(self, number: int, path: str, max_bytes: int) -> None:
        """Packs an archive, then gives it out as fast as the peer takes it."""
        sandbox = self.sandbox
        stream = self._streams[number]
        with self._spool() as spool:
            await sandbox.download(path, spool, max_bytes=max_bytes)
            await asyncio.to_thread(spool.seek, 0)
            while chunk := await asyncio.to_thread(spool.read, CHUNK_BYTES):
                await stream.room()
                self.post({"id": number, "chunk": chunk})

    def _spool(self) -> IO[bytes]:
        """A file without a name: it is gone with this process. A thread may still work at it when a cancelled call closes it, which it then
        finds out; one that begins in memory (`SpooledTemporaryFile`) would be left open by a thread that just moves it to the disk."""
        return cast(IO[bytes], tempfile.TemporaryFile(dir=self._service.spool_folder))


class _Stream:
    """The chunks of one archive, in either direction."""

    def __init__(self) -> None:
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._unread = 0
        self._has_ended = False
        self._room = asyncio.Event()
        self._on_way = 0

    def take(self, message: Message) -> None:
        """One frame of this call.

        Raises:
            WireError
        """
        chunk = message.get("chunk")
        if isinstance(chunk, bytes):
            self._unread += 1
            if self._unread > WINDOW or len(chunk) > CHUNK_BYTES:
                raise WireError(f"more than {WINDOW} chunks, or one of more than {CHUNK_BYTES:,} bytes, on their way")
            self._chunks.put_nowait(chunk)
        elif "end" in message:
            if not self._has_ended:
                self._chunks.put_nowait(None)
            self._has_ended = True
        elif "took" in message:
            self._on_way = max(0, self._on_way - 1)
            self._room.set()

    async def next(self) -> bytes | None:
        """The next chunk that came; None at the end."""
        chunk = await self._chunks.get()
        if chunk is not None:
            self._unread -= 1
        return chunk

    async def room(self) -> None:
        """Waits until one more chunk may be sent, and counts it."""
        while self._on_way >= WINDOW:
            self._room.clear()
            await self._room.wait()
        self._on_way += 1


def _fault(op: str, error: Exception) -> Message:
    return {"kind": FAILED, "text": f"the node service failed in {op}: {error!r}"}


def _plain(result: object) -> object:
    return codec.to_map(result) if is_dataclass(result) and not isinstance(result, type) else result
