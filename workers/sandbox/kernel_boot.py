"""Runs inside the sandbox: an IPython kernel without what a notebook would want. `python -I kernel_boot.py CONNECTION_FILE READY_FD`.

Isolated mode keeps the working directory, the user's site and PYTHON* variables away while the kernel loads. Afterwards the working
directory is put at the end of the path: what the agent writes can be imported, and cannot stand in for a library.
Needs only ipykernel; imports nothing of Rollstream, so it runs in any image.

What a cell shows is not lost while it is read:

1. The socket of the output never drops: with `UNSENT_MESSAGES` waiting, the thread that sends waits until the reader takes one.
2. Who prints waits for that thread once `AHEAD_CHARACTERS` are unsent. A cell is as fast as its reader, and the memory of both is bounded.
3. The wait ends when the reader reads, when its connection is gone (nothing is owed then), with an interrupt, or after `HELD_S`. What was
   printed is kept and sent in order all the same.
4. What a child process wrote straight to the descriptors before its cell ended is shown with that cell. A thread reads it, which may be
   behind: so the rest is read before the cell is said to have ended.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, ClassVar

from ipykernel.iostream import OutStream
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell
from jupyter_client.jsonutil import json_clean, json_default
from traitlets.config import Config

UNSENT_MESSAGES = 64
AHEAD_CHARACTERS = 1024 * 1024
"""What may be printed and not yet be made messages, besides what one call prints."""
HELD_S = 60.0
"""Longest that one print or flush is held; a reader that has read nothing for so long has its cell go on, a little further ahead of it."""
PIECE_CHARACTERS = 128 * 1024
"""Longest text of one output message. What a cell prints within a moment would be one message else, of any size: too large to be taken, and
held whole by whoever takes it."""
READ_BYTES = 64 * 1024
"""A pipe holds so much."""


class PieceStream(OutStream):
    """A standard stream that sends what is printed in pieces, and lets who prints wait for them to be sent."""

    _fid: int
    _ahead = 0
    of_descriptors: ClassVar[list[PieceStream]] = []
    """Those that also show what is written to their descriptor."""

    def _setup_stream_redirects(self, name: str) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._taking = threading.Lock()
        self.of_descriptors.append(self)
        super()._setup_stream_redirects(name)  # type: ignore[no-untyped-call]

    def _watch_pipe_fd(self) -> None:
        """What the descriptor's thread does."""
        os.set_blocking(self._fid, False)
        is_open = True
        while is_open and self._should_watch:
            select.select([self._fid], [], [])
            with self._taking:
                is_open = self._take()

    def _take(self) -> bool:
        """Shows what stands in the pipe, which may be nothing any more; False once the cell has closed the descriptor."""
        try:
            data = os.read(self._fid, READ_BYTES) if self._should_watch else b""
        except BlockingIOError:
            return True
        self.write(self._decoder.decode(data, final=not data))
        os.write(self._original_stdstream_copy, data)
        return bool(data)

    def hear_children(self) -> None:
        """Shows what was written to the descriptor until now. At most a pipe full: a child may write for ever."""
        if self._should_watch and os.getpid() == self._master_pid:
            with self._taking:
                self._take()

    def write(self, string: str) -> int:
        super().write(string)
        self._ahead += len(string)
        if self._ahead > AHEAD_CHARACTERS:
            self._send_all(wait=True)
        return len(string)

    def flush(self) -> None:
        """Only the cells' own thread waits: the one that handles interrupts flushes as well, and must answer while a cell is held."""
        self._send_all(wait=threading.current_thread() is threading.main_thread())

    def _send_all(self, *, wait: bool) -> None:
        """Waits on a bare lock, which an interrupt leaves whole in every moment; it would leave an event's own lock held now and then."""
        if self.pub_thread is None or os.getpid() != self._master_pid or threading.current_thread() is self.pub_thread.thread:
            super().flush()  # type: ignore[no-untyped-call]
            return
        sent = threading.Lock()
        sent.acquire()

        def send() -> None:
            try:
                self._flush()  # type: ignore[no-untyped-call]
            finally:
                sent.release()

        self.pub_thread.schedule(send)
        if wait:
            sent.acquire(timeout=HELD_S)

    def _rotate_buffers(self) -> Any:
        self._ahead = 0
        return super()._rotate_buffers()  # type: ignore[no-untyped-call]

    def _flush_buffers(self) -> Iterator[tuple[Any, str]]:
        for parent, text in super()._flush_buffers():  # type: ignore[no-untyped-call]
            for start in range(0, len(text), PIECE_CHARACTERS):
                yield parent, text[start : start + PIECE_CHARACTERS]


def interrupt_cell(number: int, frame: FrameType | None) -> None:
    """SIGINT while a cell is handled: raises inside the cell's own code and nowhere else.

    The plain handler raises wherever the kernel is. A cell that ends in that moment loses its reply, since what is interrupted is the
    kernel sending it.
    """
    at = frame.f_back if frame is not None else None
    while at is not None:
        if at.f_code is ZMQInteractiveShell.run_code.__code__:
            raise KeyboardInterrupt
        at = at.f_back


def wake_on_signals() -> None:
    """Lets a signal wake the event loop: an interrupt that finds it waiting for a cell's coroutine would be noted, and not seen.

    Having a handler of any signal in asyncio does that for all signals; this one is never sent, and ignored by default.
    """
    asyncio.get_running_loop().add_signal_handler(signal.SIGURG, lambda: None)


class SandboxKernel(IPythonKernel):
    """An IPython kernel whose interrupts only hit cells, and whose replies say where it stands."""

    def start(self) -> None:
        super().start()  # type: ignore[no-untyped-call]
        self.io_loop.add_callback(wake_on_signals)

    async def do_execute(self, *args: Any, **more: Any) -> dict[str, Any]:
        reply: dict[str, Any] = await super().do_execute(*args, **more)  # type: ignore[no-untyped-call]
        for stream in PieceStream.of_descriptors:
            stream.hear_children()
        with contextlib.suppress(OSError):  # its folder was deleted
            reply["cwd"] = os.getcwd()
        return reply

    def pre_handler_hook(self) -> None:
        self.saved_sigint_handler = signal.signal(signal.SIGINT, interrupt_cell)


class SandboxKernelApp(IPKernelApp):
    """An IPython kernel that reads no configuration, keeps no history and has no heartbeat: its process is watched instead."""

    def load_config_file(self, *_: Any, **__: Any) -> None:
        pass

    def init_heartbeat(self) -> None:
        self.heartbeat = None

    def log_connection_info(self) -> None:
        """What the process prints is kept for the case that it crashes; a greeting is not part of that."""

    def init_path(self) -> None:
        sys.path.append("")

    def init_iopub(self, context: Any) -> None:
        """Options of a context are those of the sockets made next."""
        context.sndhwm = UNSENT_MESSAGES
        context.xpub_nodrop = 1
        super().init_iopub(context)  # type: ignore[no-untyped-call]
        del context.sndhwm, context.xpub_nodrop


def pack(message: Any) -> bytes:
    """Messages as plain ASCII: a lone surrogate in what a cell prints or raises is an escape then, and does not lose the message."""
    try:
        text = json.dumps(message, default=json_default, allow_nan=False)
    except (TypeError, ValueError):
        text = json.dumps(json_clean(message), default=json_default, allow_nan=False)
    return text.encode("ascii")


def main() -> None:
    connection_file, ready_fd = sys.argv[1], int(sys.argv[2])
    sys.argv[1:] = []  # cells see the arguments of nobody
    config = Config()
    config.HistoryManager.enabled = False
    config.IPCompleter.use_jedi = False
    config.InteractiveShell.colors = "nocolor"
    app = SandboxKernelApp.instance(config=config, connection_file=connection_file, kernel_class=SandboxKernel)
    app.outstream_class = f"{__name__}.{PieceStream.__name__}"
    app.session.pack = pack
    app.initialize([])  # type: ignore[no-untyped-call]
    os.write(ready_fd, b"r")
    os.close(ready_fd)
    app.start()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
