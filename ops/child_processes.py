"""Processes that one process starts and answers for.

Invariants:
  1. Every child ends with this process, however it ends: each holds a pipe whose other end only we have (`pipeline.process.Shutdown`).
  2. Only children are ever signalled, by the handle the system gave for them, never by name or a number read from somewhere.
  3. What a child prints goes to its own log file; a child that ends unasked is reported with the last lines that it wrote there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pipeline.logs import PROCESS_NAME
from pipeline.process import PARENT_FD

TAIL_LINES = 25
TAIL_BYTES = 16_384
LOOK_S = 0.2
"""Where the system does not wake who waits for a child, one looks as often."""


@dataclass(slots=True)
class Child:
    """One child and how it stands."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    started_s: float
    log_start: int
    """Bytes that stood in the log before it."""
    asked_to_stop: bool = False

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    def last_lines(self) -> str:
        """Of what it wrote."""
        return log_tail(self.log, since=self.log_start)


class ChildEnded(Exception):
    """A child ended that should run; carries the end of its log."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.tail = child.last_lines()
        super().__init__(f"{child.name} ended with exit code {child.exit_code}; its log: {child.log}")


class ChildProcesses:
    """Starts children, watches them, stops them. A context manager: leaving it stops them all.

    Args:
        logs: folder for their logs.
        environment: beside the environment of this process.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs = logs
        self._environment = dict(environment)
        self._children: dict[str, Child] = {}
        self._listeners: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._pipe_read, self._pipe_write = os.pipe()

    def __enter__(self) -> ChildProcesses:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all(grace_s=5.0)
        os.close(self._pipe_write)
        os.close(self._pipe_read)

    @property
    def children(self) -> Sequence[Child]:
        """All that were started."""
        return tuple(self._children.values())

    def start(self, name: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Child:
        """Starts `python -m module arguments` under a name of its own."""
        return self.start_command(name, [sys.executable, "-m", module, *arguments], environment=environment)

    def start_command(
        self, name: str, command: Sequence[str | Path], *, environment: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Child:
        """Starts any program that watches the pipe under a name of its own.

        Raises:
            ValueError: a child of that name runs; it would be forgotten.
        """
        if name in self._children and self._children[name].exit_code is None:
            raise ValueError(f"a child named {name!r} runs already")
        log = self._logs / f"{name}.log"
        own = {PARENT_FD: str(self._pipe_read), PROCESS_NAME: name, "PYTHONUNBUFFERED": "1"}
        merged = {**os.environ, **self._environment, **(environment or {}), **own}
        with _opened(log) as out:
            log_start = out.tell()
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=merged,
                cwd=cwd,
                pass_fds=(self._pipe_read,),
                start_new_session=True,
            )
        child = Child(name, process, log, time.monotonic(), log_start)
        self._children[name] = child
        threading.Thread(target=self._tell_end, args=(process,), name=f"end of {name}", daemon=True).start()
        return child

    def forget(self, child: Child) -> None:
        """Lets go of a child that has ended."""
        assert child.exit_code is not None
        if self._children.get(child.name) is child:
            del self._children[child.name]

    def check(self) -> None:
        """Looks whether all run.

        Raises:
            ChildEnded: one does not.
        """
        for child in self._children.values():
            if child.exit_code is not None and not child.asked_to_stop:
                raise ChildEnded(child)

    @contextlib.contextmanager
    def endings(self) -> Iterator[asyncio.Event]:
        """An event of the running loop that is set whenever a child has ended."""
        event = asyncio.Event()
        self._listeners[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            del self._listeners[event]

    async def watch(self) -> None:
        """Returns never; raises `ChildEnded` as soon as a child ended unasked."""
        with self.endings() as ended:
            while True:
                ended.clear()
                self.check()
                await ended.wait()

    def _tell_end(self, process: subprocess.Popen[bytes]) -> None:
        """In a thread of its own: it waits for the end and leaves the exit code to whoever asks for it."""
        if hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):  # somebody has asked already
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            while process.poll() is None:
                time.sleep(LOOK_S)
        for event, loop in [*self._listeners.items()]:
            with contextlib.suppress(RuntimeError):  # a loop that is closed listens no more
                loop.call_soon_threadsafe(event.set)

    def stop_all(self, *, grace_s: float, but: Sequence[str] = ()) -> list[str]:
        """Asks all children to stop, waits, then kills; returns the names of those that had to be killed.

        Args:
            but: names of children that others need to the end; not asked.
        """
        asked = [child for child in self._children.values() if child.name not in but]
        for child in asked:
            child.asked_to_stop = True
            if child.exit_code is None:
                child.process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + grace_s
        killed = []
        for child in asked:
            try:
                child.process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
                killed.append(child.name)
        return killed


def _opened(log: Path) -> BinaryIO:
    """What a child prints is not worth as much as the child: where it cannot be kept (folder gone, read-only), it is not."""
    try:
        return log.open("ab")
    except OSError:
        return Path(os.devnull).open("ab")


def log_tail(path: Path, *, since: int = 0) -> str:
    """The last lines of a log, from a byte on."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(since if since <= size else 0, size - TAIL_BYTES))  # less than there was: it was emptied
        return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-TAIL_LINES:])
    return ""
