"""The worker's side of an execution server: one connection, requests by number, and no trust in what comes back. ADR 20 tells the protocol.

1. What comes from inside is data: bounded, of a known kind, an answer to what was asked and is open. Anything else ends the sandbox, and
   everybody who waits gets `SandboxGone` that says what came. Descriptors that are sent along are never taken.
2. A request that was sent is answered, or its end is the sandbox's: there is a limit on its silence.
3. A caller who is cancelled between request and answer leaves nothing: the request is killed by its number, whatever comes of it.
4. Not more than `WINDOW` starts are unanswered at a time, so what lies in a socket that nobody reads is bounded too.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workers.sandbox.errors import SandboxGone
from workers.sandbox.inside.guest import frames
from workers.sandbox.launcher import KillScope

WINDOW = 16
ANSWER_S = 30.0
"""A start is answered in milliseconds, and after `START_S` of the server in any case."""
GREETING_S = 20.0
LAST_WORDS_S = 1.0
READ_BYTES = 64 * 1024
UNSENT_FRAMES = 4096
"""Waiting to be sent, kills most of all: where there are so many, nobody reads them."""


class InsideProcess:
    """A process that the server started.

    Args:
        number: of its request.
        pid: in the sandbox; on a terminal the node's own number.
    """

    def __init__(self, number: int, pid: int, ended: asyncio.Future[int]) -> None:
        self.number = number
        self.pid = pid
        self._ended = ended

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() and not self._ended.exception() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)


class _Asked:
    """A request that is open: first for its answer, then for the end of what it started."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[int] = loop.create_future()
        self.ended: asyncio.Future[int] = loop.create_future()


class ServerConnection:
    """The one connection to a server.

    Args:
        control: connected.
        on_broken: told once, why the connection is of no use any more; the sandbox is to be ended then.
        is_ending: whether the sandbox is being ended: then what ends in it is of that end, and of no command.
        answer_s: the longest silence after a request.
        last_words_s: for others to say why the server has ended.
    """

    def __init__(
        self,
        sandbox_id: str,
        control: socket.socket,
        on_broken: Callable[[str], None],
        is_ending: Callable[[], bool] = lambda: False,
        *,
        answer_s: float = ANSWER_S,
        last_words_s: float = LAST_WORDS_S,
    ) -> None:
        self._sandbox_id = sandbox_id
        self._control = control
        self._on_broken = on_broken
        self._is_ending = is_ending
        self._answer_s = answer_s
        self._last_words_s = last_words_s
        self._loop = asyncio.get_running_loop()
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        self._decoder = frames.Decoder(frames.MAX_REPLY_BYTES)
        self._next_number = 0
        self._asked: dict[int, _Asked] = {}
        self._window = asyncio.Semaphore(WINDOW)
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()
        self.closed = ""
        """Why it is over; empty while it is not."""
        control.setblocking(False)
        self._loop.add_reader(control.fileno(), self._read)

    async def greet(self, token: bytes, *, limits: Mapping[str, int], seccomp: bytes, timeout_s: float = GREETING_S) -> None:
        """Shows the token, says what holds for everything that will be started, and waits for the answer.

        Raises:
            SandboxGone: there was none, or not the right one.
        """
        told = {"version": frames.VERSION, "limits": dict(limits), "seccomp": seccomp.hex()}
        self._post([frames.frame(frames.HELLO, 0, token + json.dumps(told).encode())])
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._greeted)
        except TimeoutError:
            self.close(f"its execution server gave no sign for {timeout_s:g} s")
            self.check_open()

    async def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[int, int, asyncio.Future[int]]:
        """Has something started; returns its number, its PID in the sandbox, and the future of its exit code.

        Raises:
            OSError: it could not be; the server says why.
            SandboxGone: the sandbox has ended, or the server does not answer.
        """
        async with self._window:
            self.check_open()
            self._next_number += 1
            number = self._next_number
            asked = self._asked[number] = _Asked(self._loop)
            self._post(frames.request_frames(number, json.dumps(request).encode()), descriptors)
            try:
                async with asyncio.timeout(self._answer_s):
                    return number, await asyncio.shield(asked.answer), asked.ended
            except TimeoutError:
                self.close(f"its execution server did not answer for {self._answer_s:g} s")
                self.check_open()
                raise
            except asyncio.CancelledError:
                self.kill(number, "tree", signal.SIGKILL)
                raise

    def kill(self, number: int, scope: KillScope, signal_number: int) -> None:
        """Sends a signal without waiting."""
        self._post([frames.kill_frame(number, scope, signal_number)])

    def check_open(self) -> None:
        """Raises `SandboxGone` when it is over."""
        if self.closed:
            raise SandboxGone(self._sandbox_id, self.closed)

    def break_off(self, why: str) -> None:
        """What came from inside cannot be from our program: the sandbox is ended."""
        self.close(f"its execution server broke the protocol: {why}")

    def close(self, why: str) -> None:
        """Ends the connection; who waits is told why."""
        if self.closed:
            return
        self.closed = why
        self._loop.remove_reader(self._control.fileno())
        self._loop.remove_writer(self._control.fileno())
        self._control.close()
        for _, descriptors in self._outgoing:
            _close_all(descriptors)
        self._outgoing.clear()
        waiting: list[asyncio.Future[Any]] = [self._greeted]
        for asked in self._asked.values():
            waiting += [asked.answer, asked.ended]
        for future in waiting:
            if not future.done():
                future.set_exception(SandboxGone(self._sandbox_id, why))
                future.exception()  # read: nobody may be waiting for this one
        self._asked.clear()
        self._on_broken(why)

    # -- frames -------------------------------------------------------------------------------------------------------------------------

    def _post(self, parts: Sequence[bytes], descriptors: Sequence[int] = ()) -> None:
        if self.closed:
            return
        first, *others = parts
        self._outgoing.append((first, [os.dup(number) for number in descriptors]))
        self._outgoing.extend((part, []) for part in others)
        self._write()
        if len(self._outgoing) > UNSENT_FRAMES:
            self.close("its execution server does not read what it is sent")

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
            _close_all(descriptors)
            if sent < len(data):
                self._outgoing[0] = (data[sent:], [])
            else:
                self._outgoing.popleft()
        self._loop.remove_writer(self._control.fileno())

    def _read(self) -> None:
        """All that is there, to its end: a server that ends over an unread frame of ours leaves an error on the socket, and where an answer
        lies before that, uvloop calls once for both and then never again. What can be there is bounded: an answer too many is a lie."""
        while not self.closed and self._take_in():
            pass

    def _take_in(self) -> bool:
        """What comes at once; whether something did."""
        try:
            data = self._control.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._has_ended()
            return False
        try:
            for kind, number, content in self._decoder.feed(data):
                if not self.closed:
                    self._hear(kind, number, *frames.read_reply(kind, content))
        except frames.FrameError as error:
            self.break_off(str(error))
        return True

    def _has_ended(self) -> None:
        """Its process has ended, or soon will: whoever is above says why, and hears of it a moment later than this socket does."""
        self._loop.remove_reader(self._control.fileno())
        why = "its execution server ended" + (" in the middle of an answer" if self._decoder.is_partial else "")
        if not self._is_ending():
            self._loop.call_later(self._last_words_s, self.close, why)

    def _hear(self, kind: int, number: int, value: int, text: str) -> None:
        if kind == frames.READY:
            if self._greeted.done() or number != 0 or value != frames.VERSION:
                raise frames.FrameError(f"a greeting of version {value} for {number}")
            self._greeted.set_result(None)
            return
        asked = self._asked.get(number)
        if asked is None or (kind == frames.ENDED) != asked.answer.done():
            raise frames.FrameError(f"an answer of kind {kind} to {number}, which nobody waits for")
        if kind == frames.STARTED:
            asked.answer.set_result(value)
            return
        if kind == frames.ENDED and self._is_ending():
            return
        del self._asked[number]
        if kind == frames.FAILED:
            asked.answer.set_exception(OSError(value, text))
            asked.answer.exception()  # read: its caller may be gone
        else:
            asked.ended.set_result(value)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
