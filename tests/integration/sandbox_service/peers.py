"""A peer of the service that says what a test wants, byte by byte, and hears what comes back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from workers.sandbox.service.server import SOCKET_NAME, TOKEN_NAME
from workers.sandbox.service.wire import MAX_FRAME_BYTES, VERSION, FrameDecoder, Message, frame, pack
from workers.sandbox.spec import SandboxOwner, SandboxSpec

ANSWER_S = 20.0


class RawPeer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder(MAX_FRAME_BYTES)
        self._heard: list[Message] = []

    def send(self, message: Message) -> None:
        self.writer.write(frame(pack(message)))

    def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)

    async def next(self) -> Message | None:
        """The next message; None when the service has closed the connection."""
        async with asyncio.timeout(ANSWER_S):
            while not self._heard:
                try:
                    data = await self.reader.read(2**20)
                except ConnectionResetError:
                    return None
                if not data:
                    return None
                self._heard += self._decoder.feed(data)
            return self._heard.pop(0)

    async def answer(self, number: int) -> Message:
        """The answer to a call; what comes before it is dropped."""
        while True:
            message = await self.next()
            assert message is not None, f"the connection ended before call {number} was answered"
            if message.get("id") == number and ("ok" in message or "error" in message):
                return message

    async def refusal(self) -> str:
        """The service's last word, and the end of the connection."""
        said = ""
        while (message := await self.next()) is not None:
            assert "ok" not in message
            said = message["error"]["text"] if "id" not in message and "error" in message else said
        return said

    async def greet(self, run_dir: Path) -> Message:
        self.send({"hello": VERSION, "token": (run_dir / TOKEN_NAME).read_text(), "boot": "raw", "fleet": ""})
        message = await self.next()
        assert message is not None
        assert "hello" in message, message
        return message

    async def start(self, spec: SandboxSpec, owner: SandboxOwner, number: int = 1) -> Message:
        self.send({"id": number, "op": "start", "spec": spec, "owner": owner})
        answer = await self.answer(number)
        assert "ok" in answer, answer
        return answer["ok"]  # type: ignore[no-any-return]  # of a message without a type

    def hang_up(self) -> None:
        self.writer.transport.abort()


@asynccontextmanager
async def stranger(run_dir: Path, *, receive_bytes: int = 0) -> AsyncIterator[RawPeer]:
    """A connection that has not said who it is.

    Args:
        receive_bytes: room for what it does not read; 0 = the system's own.
    """
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if receive_bytes:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connected.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connected, str(run_dir / SOCKET_NAME))
    reader, writer = await asyncio.open_unix_connection(sock=connected, limit=max(receive_bytes, 1) if receive_bytes else 2**16)
    try:
        yield RawPeer(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def peer(run_dir: Path, *, receive_bytes: int = 0) -> AsyncIterator[RawPeer]:
    """A connection that has said who it is."""
    async with stranger(run_dir, receive_bytes=receive_bytes) as raw:
        await raw.greet(run_dir)
        yield raw


def bytes_of(*messages: Message) -> bytes:
    """Frames, one behind the other."""
    return b"".join(frame(pack(message)) for message in messages)


def cut_up(data: bytes) -> Iterable[bytes]:
    """Byte by byte."""
    return (data[at : at + 1] for at in range(len(data)))
