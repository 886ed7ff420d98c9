"""PID 1 of a sandbox that nobody enters: `python3 -I -S -B HASH.pyz WORKDIR SOCKET`. ADR 20 tells the protocol and what a guest may try.

1. It does what the keeper does (`local/holder/keeper.py`): one byte when the walls stand, lives until the hold socket closes, reaps
   orphans, hears no signal from inside.
2. One connection, ever. Nothing of the guest runs before it is there and has shown the token.
3. Everything is loaded before the guest runs, and nothing afterwards: the files on any path are the guest's.
4. Nobody inside can look into it: it is not dumpable, nor is what it forks until the kernel makes that another program, or until it has
   closed all but its own socket.
5. It holds no output of programs. What it holds of answers is bounded by what was asked.

One thread, standard library, Python 3.8. Any trouble with what is outside is the end: the kernel ends the sandbox with it.
"""

from __future__ import annotations

import array
import codecs
import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys
from collections import deque
from functools import partial
from typing import Any, NoReturn

from workers.sandbox.inside.guest import file_operations, frames
from workers.sandbox.inside.guest.children import Children
from workers.sandbox.local.holder import becoming, entering
from workers.sandbox.local.holder.keeper import HOLD_FD, READY_FD

NAME = b"rs-server"
CODECS = ("utf-8", "ascii", "iso8859-1", "latin-1", "utf8")
"""All that tar headers and JSON are written in; a codec is found by an import."""
MAX_OPEN = 1024
READ_BYTES = 64 * 1024
UNSENT_BYTES = 1024 * 1024
"""Answers that nobody takes: far more than what may be asked at a time."""


class Server:
    """The loop."""

    def __init__(self, control: socket.socket, hold: socket.socket, token: bytes, folder: str, oom_score: int) -> None:
        self._control = control
        self._hold = hold
        self._token = token
        self._folder = folder
        self._decoder = frames.Decoder()
        self._descriptors: deque[int] = deque()
        self._request = bytearray()
        self._unsent = bytearray()
        self._is_greeted = False
        self._poll = select.poll()
        self._wake = _wake_on_signals()
        self._children = Children(self._send, self._poll, oom_score)
        control.setblocking(False)

    def run(self) -> NoReturn:
        poll, control, hold = self._poll, self._control.fileno(), self._hold.fileno()
        for descriptor in (control, hold, self._wake):
            poll.register(descriptor, select.POLLIN)
        while True:
            left_s = self._children.next_s()
            for descriptor, event in poll.poll(None if left_s is None else left_s * 1000 + 1):
                if descriptor == control:
                    if event & ~select.POLLOUT:
                        self._read()
                    else:
                        self._flush()
                elif descriptor == hold:
                    if not self._hold.recv(64):
                        os._exit(0)
                elif descriptor == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        while os.read(self._wake, 4096):
                            pass
                    self._children.reap()
                else:
                    self._children.hear(descriptor)
            self._children.step()

    def _read(self) -> None:
        try:
            data, ancillary, flags, _ = self._control.recvmsg(
                READ_BYTES, socket.CMSG_SPACE(frames.MAX_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(payload[: len(payload) // 4 * 4])
                self._descriptors.extend(numbers)
        if not data or flags & socket.MSG_CTRUNC:  # without its descriptors a request would get those of the next
            os._exit(1)
        for kind, number, content in self._decoder.feed(data):
            self._take(kind, number, content)

    def _take(self, kind: int, number: int, content: bytes) -> None:
        if not self._is_greeted:
            self._greet(kind, content)
        elif kind == frames.KILL:
            self._children.kill(number, *frames.read_kill(content))
        elif kind in (frames.PART, frames.ASK):
            self._request += content
            if len(self._request) > frames.MAX_REQUEST_BYTES:
                raise frames.FrameError(f"a request of {len(self._request):,} bytes")
            if kind == frames.ASK:
                request = json.loads(self._request)
                self._request.clear()
                self._do(number, request)
        else:
            raise frames.FrameError(f"a frame of kind {kind}")

    def _greet(self, kind: int, content: bytes) -> None:
        if kind != frames.HELLO or content[: frames.TOKEN_BYTES] != self._token:  # there is one try, so no time to be measured
            os._exit(1)
        told = json.loads(content[frames.TOKEN_BYTES :])
        self._children.limits, self._children.seccomp = told["limits"], bytes.fromhex(told["seccomp"])
        self._is_greeted = True
        self._send(frames.reply(frames.READY, 0, frames.VERSION, f"Python {sys.version.split()[0]}"))

    def _do(self, number: int, request: dict[str, Any]) -> None:
        places = request["fds"]
        descriptors = [self._descriptors.popleft() for _ in places]
        try:
            if request["do"] == "nothing":
                self._send(frames.reply(frames.STARTED, number, os.getpid()) + frames.reply(frames.ENDED, number, 0))
            elif request["do"] == "run":
                self._children.run(number, request, descriptors)
            else:
                self._children.work(number, partial(self._work_on_files, request, descriptors[0]))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _work_on_files(self, request: dict[str, Any], descriptor: int) -> None:
        """In a child: it keeps its own socket and nothing else of ours. So nobody need be kept from looking into it any more, and the
        watchdog can: it ends what hides."""
        os.dup2(descriptor, 3, inheritable=False)
        os.closerange(4, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        becoming.prctl(entering.PR_SET_DUMPABLE, 1)
        for name in ("memory_bytes", "file_bytes", "cpu_s"):
            with contextlib.suppress(OSError, ValueError):  # somebody inside has lowered what may be had
                resource.setrlimit(becoming.LIMITS[name], (self._children.limits[name], self._children.limits[name]))
        with socket.socket(fileno=3) as connection:
            file_operations.operate(request, self._folder, connection)

    def _send(self, reply: bytes) -> None:
        self._unsent += reply
        self._flush()
        if len(self._unsent) > UNSENT_BYTES:
            os._exit(1)

    def _flush(self) -> None:
        if self._unsent:
            with contextlib.suppress(BlockingIOError):
                del self._unsent[: self._control.send(self._unsent)]
        self._poll.modify(self._control, select.POLLIN | (select.POLLOUT if self._unsent else 0))


def main() -> None:
    folder, path = sys.argv[1:3]
    for number in range(1, signal.NSIG):  # only what has a handler reaches a PID 1 from its own namespace
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):  # what works on files closes all that it may have inherited, one by one in an old Python
        resource.setrlimit(resource.RLIMIT_NOFILE, (MAX_OPEN, hard))
    try:
        control, hold, token, oom_score = _get_ready(folder, path)
    except OSError as error:
        sys.exit(f"execution server: {error}")
    with contextlib.suppress(Exception):  # whatever it is: a traceback would read files that are the guest's
        Server(control, hold, token, folder, oom_score).run()
    os._exit(1)


def _get_ready(folder: str, path: str) -> tuple[socket.socket, socket.socket, bytes, int]:
    """Everything until the one connection is there."""
    for descriptor in (READY_FD, HOLD_FD):
        os.set_inheritable(descriptor, False)
    hold = socket.socket(fileno=HOLD_FD)
    token = _read_exactly(hold, frames.TOKEN_BYTES)
    with contextlib.suppress(OSError):  # an earlier attachment put something else there: commands that start there say so
        os.makedirs(folder, exist_ok=True)
    for codec in CODECS:
        codecs.lookup(codec)
    becoming.prctl(becoming.PR_SET_NAME, NAME)
    oom_score = -1
    with contextlib.suppress(OSError):
        oom_score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
    entering.hide()
    entering.forbid_imports()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(1)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)
        os.write(READY_FD, b"r")
        os.close(READY_FD)
        if listener not in select.select([listener, hold], [], [])[0]:
            os._exit(0)
        control, _ = listener.accept()
    os.unlink(path)
    return control, hold, token, oom_score


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        piece = connection.recv(size - len(content))
        if not piece:
            os._exit(0)
        content += piece
    return content


def _wake_on_signals() -> int:
    """A descriptor that is readable when a child has ended."""
    wake, wake_write = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return wake
