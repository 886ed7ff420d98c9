"""Two stand-ins: what is above a launcher, and an execution server that says whatever a test wants."""

from __future__ import annotations

import array
import asyncio
import os
import socket
from types import TracebackType
from typing import Self

from workers.sandbox.errors import SandboxGone
from workers.sandbox.inside.guest import frames


class Above:
    """A holder that notes why it is to end, and ends at once."""

    def __init__(self, gone: asyncio.Future[str]) -> None:
        self.gone = gone
        self.is_ending = False

    def check_open(self) -> None:
        if self.gone.done():
            raise SandboxGone("sandbox", self.gone.result())

    def end_because(self, why: str) -> None:
        if not self.gone.done():
            self.is_ending = True
            self.gone.set_result(why)


class FalseServer:
    """The other end of a control connection; each step waits for its bytes in a thread."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.descriptors: list[int] = []
        control.settimeout(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.control.close()
        for descriptor in self.descriptors:
            os.close(descriptor)

    async def heard(self) -> tuple[int, int, bytes]:
        """The next frame, its descriptors taken."""
        return await asyncio.to_thread(self._hear)

    async def say(self, *parts: bytes) -> None:
        await asyncio.to_thread(self.control.sendall, b"".join(parts))

    async def give(self, data: bytes, descriptor: int) -> None:
        """As `say`, with a descriptor beside it."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        await asyncio.to_thread(self.control.sendmsg, [data], rights)

    def _hear(self) -> tuple[int, int, bytes]:
        head = self._exactly(frames.HEAD.size)
        length, kind, number = frames.HEAD.unpack(head)
        return kind, number, self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            piece, descriptors, _, _ = socket.recv_fds(self.control, size - len(content), frames.MAX_DESCRIPTORS)
            self.descriptors += descriptors
            if not piece:
                raise EOFError
            content += piece
        return content
