"""A Unix-socket proxy before Redis that loses replies: what was asked is done, and the one who asked does not learn of it.

It lives in a thread with its own event loop, so that it serves blocking and asynchronous clients, and worker processes, alike.

  - `cut_share`: this share of all replies is cut, by a seeded random: the connection breaks instead.
  - `cut_reply(containing=...)`: the reply to the next request that contains these bytes is cut.
  - `hold_reply(containing=...)`: the reply to the next such request is held until the test lets it go.
  - `begin_outage()` breaks every connection and refuses new ones until `heal()`.

"A reply" is what the server sends next after a request; clients here never have two requests on their way on one connection.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

READ_BYTES = 1 << 16
LONGEST_REQUEST_KEPT = 1 << 16
"""Of a request, this much is looked at to find the bytes a test asked for."""

NOT_DONE = b"-NOSCRIPT"
"""A reply that begins so says that nothing was done yet: the client loads the script and asks again, and that request is the one meant."""

_Value = TypeVar("_Value")


class Trap:
    """What happens to the reply of one request to come."""

    def __init__(self, containing: bytes, loop: asyncio.AbstractEventLoop, *, cuts: bool) -> None:
        self.containing = containing
        self.cuts = cuts
        self._loop = loop
        self._sprung = threading.Event()
        self._released = asyncio.Event()

    def release(self) -> None:
        """Lets a held reply go."""
        self._loop.call_soon_threadsafe(self._released.set)

    async def sprung(self, timeout_s: float = 10.0) -> None:
        """Returns when the server has done what was asked and its reply is in the trap."""
        if not await asyncio.to_thread(self._sprung.wait, timeout_s):
            raise AssertionError(f"no request with {self.containing!r} was answered within {timeout_s:g} s")

    async def _catch(self) -> bool:
        """Whether the reply goes on, once it may."""
        self._sprung.set()
        if not self.cuts:
            await self._released.wait()
        return not self.cuts


class LossyProxy:
    """A proxy before one server; a context manager.

    Args:
        upstream: the server's Unix socket.
        seed: of the random that picks the replies to cut.
        cut_share: 0 to 1.
    """

    def __init__(self, upstream: Path, *, seed: int = 0, cut_share: float = 0.0) -> None:
        self.cut_share = cut_share
        self.replies_cut = 0
        self.replies_passed = 0
        self._upstream = upstream
        self._random = random.Random(seed)
        self._folder = Path(tempfile.mkdtemp(prefix="rsp-"))
        self.socket = self._folder / "p"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lossy-proxy", daemon=True)
        self._traps: list[Trap] = []
        self._is_out = False
        self._links: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """For `QueueSettings.redis_url`."""
        return f"unix://{self.socket}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._open())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def cut_reply(self, *, containing: bytes) -> Trap:
        """The next request with these bytes is done, and its connection breaks instead of a reply."""
        return self._set(Trap(containing, self._loop, cuts=True))

    def hold_reply(self, *, containing: bytes) -> Trap:
        """The next request with these bytes is done, and its reply waits for `Trap.release`."""
        return self._set(Trap(containing, self._loop, cuts=False))

    def begin_outage(self) -> None:
        """Redis is away: every connection breaks, new ones are refused."""
        self._do(self._set_out(True))

    def heal(self) -> None:
        """Ends an outage."""
        self._do(self._set_out(False))

    def _set(self, trap: Trap) -> Trap:
        async def add() -> None:
            self._traps.append(trap)

        self._do(add())
        return trap

    def _do(self, work: Coroutine[object, object, _Value]) -> _Value:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _open(self) -> None:
        self._server = await asyncio.start_unix_server(self._accept, self.socket)

    async def _close(self) -> None:
        """Leaves nothing in the loop: no connection that is just being accepted, none that just begins to break.

        A server that is closed between the accept of a connection and asyncio's first look at it forgets the socket; a task of asyncio's
        that is cancelled before its first step does, too. So nobody comes any more, then those who came are served, then it is closed.
        """
        assert self._server is not None
        self.socket.unlink()
        await self._set_out(True)
        quiet = 0
        while quiet < 2:  # looks at the listening socket
            await asyncio.sleep(0)
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            quiet = 0 if rest else quiet + 1
            if rest:
                await asyncio.wait(rest)
        self._server.close()

    async def _set_out(self, is_out: bool) -> None:
        self._is_out = is_out
        if is_out:
            await self._break_links()

    async def _break_links(self) -> None:
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer), name="lossy-link")
        self._links.add(task)

        def ended(task: asyncio.Task[None]) -> None:  # a task that is cancelled before its first step runs none of its own lines
            self._links.discard(task)
            writer.transport.abort()

        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_out:
            return
        try:
            up_reader, up_writer = await asyncio.open_unix_connection(self._upstream)
        except OSError:
            return  # the server is down: its client sees a broken connection, as without us
        try:
            await _Link(self, reader, writer, up_reader, up_writer).run()
        finally:
            up_writer.transport.abort()

    async def _lets_pass(self, request: bytes, reply: bytes) -> bool:
        """Decides on one reply."""
        for trap in self._traps:
            if trap.containing in request and not reply.startswith(NOT_DONE):
                self._traps.remove(trap)
                return await trap._catch()
        return self._random.random() >= self.cut_share


class _Link:
    """One client's connection."""

    def __init__(
        self,
        proxy: LossyProxy,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._down = (reader, writer)
        self._up = (up_reader, up_writer)
        self._request = bytearray()

    async def run(self) -> None:
        """Carries bytes both ways until one side ends or a reply is cut."""
        ways = [asyncio.create_task(self._requests()), asyncio.create_task(self._replies())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _requests(self) -> None:
        reader, (_, writer) = self._down[0], self._up
        while data := await reader.read(READ_BYTES):
            self._request += data[: LONGEST_REQUEST_KEPT - len(self._request)]
            writer.write(data)
            await writer.drain()

    async def _replies(self) -> None:
        proxy, (reader, _), writer = self._proxy, self._up, self._down[1]
        while data := await reader.read(READ_BYTES):
            if self._request:
                request, self._request = bytes(self._request), bytearray()
                if not await proxy._lets_pass(request, data):
                    proxy.replies_cut += 1
                    return
                proxy.replies_passed += 1
            writer.write(data)
            await writer.drain()
