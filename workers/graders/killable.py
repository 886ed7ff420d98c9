"""Processes for work that may never end: called one request at a time, killed when they overrun, replaced.

Invariants
    - A call has so much processor time and, in case the child sleeps or the machine is overloaded, `WALL_PER_CPU` times as much time by the
      clock; then the child is killed, whatever it does. One that overran, died or was cancelled is never given another call.
    - A child has no more memory than it was allowed and outlives neither its pool nor its parent, also when the parent is killed: it
      asks for the parent-death signal, exits when its pipe closes, and dies by its own alarm when even that is held up.
    - Requests and replies are JSON in frames of a length and bytes. Nothing is unpickled on either side.

What the child does is in the module it runs, which calls `killable_child.serve`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

MAX_FRAME_BYTES = 4 << 20
"""A larger request or reply is a fault."""
WALL_PER_CPU = 5.0
"""How much longer than its processor time a call may take by the clock; a limit by the clock alone kills honest work on a busy machine."""
_LENGTH_BYTES = 4
_STDERR_KEPT = 4_096
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TMPDIR", "VIRTUAL_ENV")
"""What a child may see of the environment: enough to start Python, no passwords and no addresses."""
_CLOSE_GRACE_S = 1.0
_ROOT = str(Path(__file__).resolve().parents[2])
"""Where a child imports this project from."""

Json = dict[str, Any]  # JSON objects: their values are whatever the two sides agreed on


class CallTimedOut(Exception):
    """The call took longer than it may; the child is dead."""


class CallCrashed(Exception):
    """The child died during the call, twice in a row on the same request."""


class ChildNotStarted(Exception):
    """A child did not come up: its module cannot be imported, or the machine is out of memory or processes."""


class KillablePool:
    """A few child processes, started when first needed and kept warm.

    An async context manager; leaving it ends every child. It belongs to one event loop.

    Args:
        module: what a child runs with `python -m`; it must call `killable_child.serve`.
        processes: children at most, and so calls at once.
        memory_bytes: what a child may allocate beyond what its imports took.
        start_limit_s: time for a child to import its libraries and say that it is ready.
        calls_before_replacement: a child is replaced after this many calls, since symbolic algebra fills caches that never shrink.
        variables: more of the child's environment.
    """

    def __init__(
        self,
        module: str,
        *,
        processes: int = 2,
        memory_bytes: int = 512 << 20,
        start_limit_s: float = 60.0,
        calls_before_replacement: int = 2_000,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._module = module
        self._memory_bytes = memory_bytes
        self._start_limit_s = start_limit_s
        self._calls_before_replacement = calls_before_replacement
        self._variables = dict(variables or {})
        self._slots = asyncio.Semaphore(processes)
        self._processes = processes
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed = True  # from here on no child starts, so the set only shrinks
        await asyncio.gather(*(child.close() for child in list(self._all)))
        self._all.clear()
        self._idle.clear()

    @property
    def pids(self) -> frozenset[int]:
        """The children that are alive now."""
        return frozenset(child.pid for child in self._all if child.is_alive)

    @property
    def working(self) -> frozenset[int]:
        """The children that have a request now."""
        return frozenset(child.pid for child in self._all if child.is_alive and child.is_working)

    async def warm(self) -> None:
        """Starts all children now, so that the first calls need not wait for their imports."""
        missing = self._processes - len(self._all)
        self._idle.extend(await asyncio.gather(*(self._start() for _ in range(missing))))

    async def renew(self) -> None:
        """Ends the children that have no request: the next calls are answered by new ones."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(self._discard(child) for child in idle))

    async def call(self, request: Mapping[str, Any], *, limit_s: float, tries: int = 2) -> Json:
        """The child's reply to `request`.

        A child that dies is replaced and asked once more, because it may have died for a reason of its own between two calls.
        When the caller is cancelled the child is killed: what it works on is wanted by nobody.

        Args:
            tries: children that may die of it.

        Raises:
            CallTimedOut: no reply within `limit_s` of processor time; waiting for a free child and starting one do not count.
            CallCrashed: the child died of this request.
            RuntimeError: the pool was left before the reply.
            ChildNotStarted: no child could be started.
        """
        async with self._slots:
            for number in range(1, tries + 1):
                child = await self._child()
                try:
                    async with asyncio.timeout(limit_s * WALL_PER_CPU):
                        reply = await child.exchange(request, limit_s)
                except TimeoutError:
                    await self._discard(child)
                    raise CallTimedOut(f"no reply within {limit_s * WALL_PER_CPU} s by the clock") from None
                except (EOFError, OSError):
                    status, said = await self._discard(child), child.said
                    if status == -signal.SIGPROF:
                        raise CallTimedOut(f"no reply within {limit_s} s of processor time") from None
                    if number == tries:
                        raise CallCrashed(f"the child ended with status {status} during the call: {said or 'it said nothing'}") from None
                except BaseException:
                    child.kill()
                    await asyncio.shield(self._discard(child))
                    raise
                else:
                    if child.calls >= self._calls_before_replacement:
                        await self._discard(child)
                    else:
                        self._idle.append(child)
                    return reply
        raise AssertionError("the last try returns or raises")

    async def _child(self) -> _Child:
        self._refuse_when_closed()
        while self._idle:
            child = self._idle.pop()
            if child.is_alive:
                return child
            await self._discard(child)
        return await self._start()

    async def _start(self) -> _Child:
        self._refuse_when_closed()
        child = await _Child.start(self._module, self._memory_bytes, self._variables)
        self._all.add(child)
        try:
            self._refuse_when_closed()
            async with asyncio.timeout(self._start_limit_s):
                await child.ready()
        except (TimeoutError, EOFError, OSError) as broken:
            status = await self._discard(child)
            why = "took too long" if isinstance(broken, TimeoutError) else f"ended with status {status}"
            raise ChildNotStarted(f"{self._module} {why}: {child.said or 'it said nothing'}") from broken
        except BaseException:
            child.kill()
            await asyncio.shield(self._discard(child))
            raise
        return child

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise RuntimeError("the pool is closed")

    async def _discard(self, child: _Child) -> int:
        """Kills and reaps a child; its exit status."""
        status = await child.end()
        self._all.discard(child)
        return status


def _pidfd_of(pid: int) -> int | None:
    """A handle on a process; None where the system has none."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # an old kernel, or a sandbox that forbids the call
            return os.pidfd_open(pid)
    return None


class _Child:
    """One child process and the pipes to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._to, self._from = process.stdin, process.stdout
        self._said = b""
        self._pidfd = _pidfd_of(process.pid)
        self._listener = asyncio.create_task(self._listen(process.stderr), name=f"stderr of grader process {process.pid}")
        self.calls = 0
        self.is_working = False

    @classmethod
    async def start(cls, module: str, memory_bytes: int, variables: Mapping[str, str]) -> _Child:
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        environment |= {"PYTHONPATH": _ROOT, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", **variables}
        # -P: the working directory is never on the import path, so no file beside the user's script can stand in for a library
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", module, str(os.getpid()), str(memory_bytes)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    @property
    def said(self) -> str:
        """The end of what it wrote to its standard error."""
        return self._said.decode(errors="replace").strip()[-400:]

    async def ready(self) -> None:
        await self._read()

    async def exchange(self, request: Mapping[str, Any], limit_s: float) -> Json:
        self.calls += 1
        body = json.dumps({"cpu_s": limit_s, "wall_s": limit_s * WALL_PER_CPU, "request": request}).encode()
        if len(body) > MAX_FRAME_BYTES:
            raise ValueError(f"a request of {len(body)} bytes, the bound is {MAX_FRAME_BYTES}")
        self.is_working = True
        self._to.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
        await self._to.drain()
        reply = await self._read()
        self.is_working = False  # a child that did not reply is not called again
        return reply

    async def _read(self) -> Json:
        length = int.from_bytes(await self._from.readexactly(_LENGTH_BYTES), "big")
        if length > MAX_FRAME_BYTES:
            raise OSError(f"a reply of {length} bytes")
        reply = json.loads(await self._from.readexactly(length))
        if not isinstance(reply, dict):
            raise OSError("a reply that is no object")
        return reply

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        while piece := await stream.read(_STDERR_KEPT):
            self._said = (self._said + piece)[-_STDERR_KEPT:]

    def kill(self) -> None:
        """By its pidfd where there is one, so that no other process can be hit.

        Not by the process object: that first polls, and so takes the exit status of a child that has just died away from the event loop.
        """
        if not self.is_alive:
            return
        with contextlib.suppress(ProcessLookupError):
            if sys.platform == "linux" and self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)

    async def end(self) -> int:
        """Kills it and waits until it is gone; its exit status."""
        self.kill()
        status = await self._process.wait()
        self._to.close()
        await self._listener
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        return status

    async def close(self) -> None:
        """Lets an idle child leave by itself, then kills it."""
        self._to.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_GRACE_S):
                await self._process.wait()
        await self.end()
