"""The worker's end of one connection: calls that wait for their answers, archives, and what the service says by itself.

1. Every call ends: with its answer, or, when the connection ends, with the error that `lost_error` makes, all of them at once.
2. A cancelled call tells the service, and raises when the service has ended what it started, or after `CANCEL_S`.
3. So many calls run at once as the service takes of one connection (`MAX_CALLS`), those that end the sandbox not counted: more wait for
   one of them to be answered. Who asks for a thousand things at once does not lose the sandbox for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from pipeline.folders import FolderError, make_private_folder
from workers.sandbox.service.peer import Peer
from workers.sandbox.service.server import SOCKET_NAME, TOKEN_NAME
from workers.sandbox.service.wire import CHUNK_BYTES, ENDS, MAX_CALLS, VERSION, WINDOW, Message, error_from_map

HELLO_S = 10.0
CANCEL_S = 1.0
"""A call that is cancelled waits so long for the service to say that it has ended."""


class ServiceNotThere(Exception):
    """Nobody answers at the socket; the message says what was tried."""


class Link(Peer):
    """One connection to the node service.

    Args:
        lost_error: what calls raise when the connection ends, of why it did.
    """

    def __init__(self, lost_error: Callable[[str], Exception]) -> None:
        super().__init__()
        self.lost_error = lost_error
        self.lost: asyncio.Future[str] = self._loop.create_future()
        """Done when the connection has ended: why."""
        self.gone: asyncio.Future[str] = self._loop.create_future()
        """Done when the sandbox of this connection has ended, or with the connection."""
        self.was_taken = False
        """Whether the node ended it over our head."""
        self.degraded = ""
        """Why the node starts nothing now; empty = it does."""
        self.on_degraded: Callable[[str], None] = lambda _: None
        """Told when that changes."""
        self.hello: asyncio.Future[Message] = self._loop.create_future()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._archives: dict[int, _Archive] = {}
        self._running: set[int] = set()
        """Calls that the service has not answered, also such that nobody waits for any more."""
        self._line: deque[asyncio.Future[None]] = deque()
        """Who waits until one of them is answered."""
        self._last = 0
        self._why = ""

    @classmethod
    async def connect(cls, run_dir: Path, *, boot: str, fleet: str, lost_error: Callable[[str], Exception]) -> Link:
        """Connects and greets.

        Raises:
            ServiceNotThere
        """
        path = run_dir / SOCKET_NAME
        try:
            token = _read_token(run_dir)
            async with asyncio.timeout(HELLO_S):
                _, link = await asyncio.get_running_loop().create_unix_connection(lambda: cls(lost_error), str(path))
                try:
                    link.post({"hello": VERSION, "token": token, "boot": boot, "fleet": fleet})
                    await asyncio.wait((link.hello, link.lost), return_when=asyncio.FIRST_COMPLETED)
                except BaseException:
                    link.cut()
                    raise
        except TimeoutError:
            raise ServiceNotThere(f"no answer at {path} within {HELLO_S:g} s") from None
        except OSError as error:
            raise ServiceNotThere(f"{path}: {error.strerror or error}") from error
        if not link.hello.done():
            raise ServiceNotThere(f"{path}: {link.lost.result()}")
        return link

    async def call(self, op: str, **arguments: object) -> Any:
        """Asks for something; what it answers.

        Raises:
            what the service says, or `lost_error`.
        """
        number, answer = await self._open(op)
        try:
            await self.send({"id": number, "op": op, **arguments})
            return await answer
        except BaseException:  # cancelled, or it cannot be sent: then the service says that it never came
            await self._end_cancelled(number, answer)
            raise
        finally:
            del self._calls[number]

    async def upload(self, tar: IO[bytes], **arguments: object) -> None:
        """Gives an archive to the call `upload`."""
        number, answer = await self._open("upload")
        archive = self._archives[number] = _Archive(answer)
        try:
            await self.send({"id": number, "op": "upload", **arguments})
            while not answer.done():
                chunk = await asyncio.to_thread(tar.read, CHUNK_BYTES)
                if not chunk:
                    self.post({"id": number, "end": 1})
                    break
                await archive.room()
                self.post({"id": number, "chunk": chunk})
            await answer
        except BaseException:
            await self._end_cancelled(number, answer)
            raise
        finally:
            del self._calls[number], self._archives[number]

    async def download(self, tar: IO[bytes], **arguments: object) -> None:
        """Takes an archive from the call `download`."""
        number, answer = await self._open("download")
        archive = self._archives[number] = _Archive(answer)
        try:
            await self.send({"id": number, "op": "download", **arguments})
            while (chunk := await archive.chunks.get()) is not None:
                await asyncio.to_thread(tar.write, chunk)
                self.post({"id": number, "took": 1})
            await answer
        except BaseException:
            await self._end_cancelled(number, answer)
            raise
        finally:
            del self._calls[number], self._archives[number]

    # -- steps ---------------------------------------------------------------------------------------------------------------------------

    async def _open(self, op: str) -> tuple[int, asyncio.Future[Any]]:
        """The number of a new call, when there is room for one more, and where its answer will be."""
        while not self.ended and len(self._running) >= MAX_CALLS and op not in ENDS:
            turn = self._loop.create_future()
            self._line.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._let_next()  # it was ours to take
                raise
            finally:
                if turn in self._line:
                    self._line.remove(turn)
        if self.ended:
            raise self.lost_error(self._why)
        self._last += 1
        answer = self._calls[self._last] = self._loop.create_future()
        self._running.add(self._last)
        return self._last, answer

    def _let_next(self) -> None:
        """One call less runs."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    async def _end_cancelled(self, number: int, answer: asyncio.Future[Any]) -> None:
        if not answer.done() or answer.cancelled():
            # the wait itself may have cancelled the future: what ends the call is heard by another one
            ended = self._calls[number] = self._loop.create_future()
            self.post({"cancel": number})
            if not self.ended:
                await asyncio.wait((ended,), timeout=CANCEL_S)
            answer = ended
        if answer.done() and not answer.cancelled():
            answer.exception()  # nobody waits for it any more

    def on_message(self, message: Message) -> None:
        number = message.get("id")
        if number is None:
            if "gone" in message:
                self.was_taken = bool(message.get("taken"))
                _settle(self.gone, str(message["gone"]))
            elif "degraded" in message and "hello" not in message:
                self.degraded = str(message["degraded"])
                self.on_degraded(self.degraded)
            elif "hello" in message:
                self.degraded = str(message.get("degraded", ""))
                _settle(self.hello, message)
            elif "error" in message:
                self._why = str(error_from_map(message["error"]))
            return
        answer = self._calls.get(number)
        if "chunk" in message:
            archive = self._archives.get(number)
            if archive is not None:
                archive.chunks.put_nowait(message["chunk"])
        elif "took" in message:
            archive = self._archives.get(number)
            if archive is not None:
                archive.took()
        else:
            if number in self._running:
                self._running.discard(number)
                self._let_next()
            self._answer(answer, message)

    def _answer(self, answer: asyncio.Future[Any] | None, message: Message) -> None:
        if answer is None or answer.done():
            return  # of a call that nobody waits for any more
        if "error" in message:
            answer.set_exception(error_from_map(message["error"]))
        else:
            answer.set_result(message.get("ok"))

    def on_bad_peer(self, why: str) -> None:
        self._why = self._why or f"the node service does not speak our protocol: {why}"

    def on_end(self) -> None:
        self._why = self._why or "the node service ended, or closed the connection"
        _settle(self.lost, self._why)
        _settle(self.gone, self._why)
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(self.lost_error(self._why))
                answer.exception()  # read: who was cancelled does not
        for turn in self._line:
            if not turn.done():
                turn.set_result(None)


class _Archive:
    """The chunks of one archive on their way, until its call is answered."""

    def __init__(self, answer: asyncio.Future[Any]) -> None:
        self.chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._answer = answer
        self._on_way = 0
        self._moved = asyncio.Event()
        answer.add_done_callback(self._over)

    def took(self) -> None:
        """The other end has taken one."""
        self._on_way -= 1
        self._moved.set()

    async def room(self) -> None:
        """Waits until one more may be sent, and counts it; or until the call has ended without wanting it."""
        while self._on_way >= WINDOW and not self._answer.done():
            self._moved.clear()
            await self._moved.wait()
        self._on_way += 1

    def _over(self, _: object) -> None:
        self._moved.set()
        self.chunks.put_nowait(None)


def _read_token(run_dir: Path) -> str:
    """The token of the service in a folder that is ours alone: below `/tmp` anybody can lay out a folder, and serve in it.

    Raises:
        OSError
        ServiceNotThere: others may have had their hands in it.
    """
    token = (run_dir / TOKEN_NAME).read_text(encoding="ascii", errors="replace").strip()
    try:
        make_private_folder(run_dir, "ROLLSTREAM_SANDBOX_RUN_DIR")
    except FolderError as error:
        raise ServiceNotThere(str(error)) from error
    return token


def _settle(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)
