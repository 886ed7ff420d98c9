"""One command without a session, over any launcher.

The end of the command is the end of its process, not the end of its output: what it leaves in the background keeps the pipes open and is
not waited for. What the process itself wrote is complete, since it is in the pipe before the process ends.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Mapping, Sequence

from workers.sandbox.capture import HeadTail
from workers.sandbox.errors import ExecTimeout, SandboxError
from workers.sandbox.launcher import LaunchedProcess, Launcher
from workers.sandbox.results import ExecResult

TERM_GRACE_S = 1.0
"""What a command gets to say after SIGTERM, before SIGKILL."""
KILL_GRACE_S = 5.0
"""A killed process is gone in milliseconds; one that is not hangs in the kernel."""
READ_BYTES = 64 * 1024
DRAIN_BYTES = 1024 * 1024
"""The largest pipe an unprivileged process can make: no more than this can be left when the command has ended."""

NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
"""A command that could not start for one of these says nothing about the command."""


async def execute(
    launcher: Launcher,
    command: str | Sequence[str],
    *,
    stdin: bytes,
    cwd: str,
    env: Mapping[str, str],
    timeout_s: float,
    max_output_bytes: int,
) -> ExecResult:
    """See `Sandbox.exec`; `env` is the whole environment."""
    started = time.monotonic()
    argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
    problem = _cannot_be_arguments(argv)
    if problem:
        return _not_run(126, problem, started)
    async with _Pipes(stdin, max_output_bytes) as pipes:
        try:
            process = await launcher.spawn(argv, env=env, cwd=cwd, fds={0: pipes.stdin, 1: pipes.stdout, 2: pipes.stderr})
        except OSError as error:
            if error.errno in NO_ROOM:
                raise SandboxError(f"no command can be started: {error.strerror}") from error
            return _not_run(127 if error.errno == errno.ENOENT else 126, f"{argv[0]}: {error.strerror}", started)
        pipes.begin()
        timed_out = False
        try:
            async with asyncio.timeout(timeout_s):
                returncode = await process.wait()
        except TimeoutError:
            timed_out = True
            returncode = await _end(launcher, process, timeout_s, pipes)
        except asyncio.CancelledError:
            launcher.kill(process, "tree", signal.SIGKILL)
            raise
        pipes.drain()
        launcher.check_open()
        return ExecResult(
            returncode=returncode,
            stdout=pipes.out.content(),
            stderr=pipes.err.content(),
            timed_out=timed_out,
            truncated_bytes=pipes.out.dropped_bytes + pipes.err.dropped_bytes,
            took_s=time.monotonic() - started,
        )


async def _end(launcher: Launcher, process: LaunchedProcess, timeout_s: float, pipes: _Pipes) -> int:
    """Asks, then kills; the tree goes in any case, children may have ignored what their parent obeyed."""
    try:
        launcher.kill(process, "group", signal.SIGTERM)
        try:
            async with asyncio.timeout(TERM_GRACE_S):
                return await process.wait()
        except TimeoutError:
            pass
        finally:
            launcher.kill(process, "tree", signal.SIGKILL)
        async with asyncio.timeout(KILL_GRACE_S):
            return await process.wait()
    except TimeoutError:
        pipes.drain()
        raise ExecTimeout("command", timeout_s, pipes.out.content(), pipes.err.content()) from None


def _cannot_be_arguments(argv: Sequence[str]) -> str:
    for argument in argv:
        if "\0" in argument:
            return "an argument holds a NUL byte, which no program can be given"
        try:
            os.fsencode(argument)
        except UnicodeEncodeError:
            return "an argument holds a lone surrogate, which is no character"
    return "" if argv else "no command was given"


def _not_run(returncode: int, why: str, started: float) -> ExecResult:
    took_s = time.monotonic() - started
    return ExecResult(returncode=returncode, stdout=b"", stderr=f"{why}\n".encode(), timed_out=False, truncated_bytes=0, took_s=took_s)


class _Pipes:
    """The three streams of one command; the event loop moves their bytes."""

    def __init__(self, stdin: bytes, max_output_bytes: int) -> None:
        self.out = HeadTail(max_output_bytes)
        self.err = HeadTail(max_output_bytes)
        self._loop = asyncio.get_running_loop()
        self._unsent = memoryview(stdin)
        self._given: list[int] = []
        self._readers: dict[int, HeadTail] = {}
        self._writer = -1
        self.stdin = self.stdout = self.stderr = -1

    async def __aenter__(self) -> _Pipes:
        try:
            if self._unsent:
                self.stdin, self._writer = os.pipe()
                os.set_blocking(self._writer, False)
            else:
                self.stdin = os.open(os.devnull, os.O_RDONLY)
            self._given.append(self.stdin)
            for name, sink in (("stdout", self.out), ("stderr", self.err)):
                read_end, write_end = os.pipe()
                os.set_blocking(read_end, False)
                setattr(self, name, write_end)
                self._given.append(write_end)
                self._readers[read_end] = sink
        except BaseException:
            self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()

    def begin(self) -> None:
        """The command has its ends: ours are closed, and bytes start to move."""
        while self._given:
            os.close(self._given.pop())
        for descriptor in self._readers:
            self._loop.add_reader(descriptor, self._read, descriptor)
        if self._writer >= 0:
            self._loop.add_writer(self._writer, self._write)

    def drain(self) -> None:
        """Takes what is in the pipes now, without waiting for whoever else holds them."""
        for descriptor, sink in list(self._readers.items()):
            limit = sink.total_bytes + DRAIN_BYTES
            while descriptor in self._readers and sink.total_bytes < limit and self._read(descriptor):
                pass

    def _read(self, descriptor: int) -> bool:
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._stop_reading(descriptor)
            return False
        self._readers[descriptor].feed(data)
        return True

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._writer, self._unsent) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # the command does not want the rest
            self._unsent = memoryview(b"")
        if not self._unsent:
            self._stop_writing()

    def _stop_reading(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        del self._readers[descriptor]

    def _stop_writing(self) -> None:
        if self._writer >= 0:
            self._loop.remove_writer(self._writer)
            os.close(self._writer)
            self._writer = -1

    def _close(self) -> None:
        while self._given:
            os.close(self._given.pop())
        for descriptor in list(self._readers):
            self._stop_reading(descriptor)
        self._stop_writing()
