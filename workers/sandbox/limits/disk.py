"""Asks the counting process (`disk_counter.py`) what folders occupy, one question at a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COUNTER = Path(__file__).with_name("disk_counter.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """What some folders occupy together."""

    bytes: int = 0
    files: int = 0
    """Files and folders; a count stops when it is above what was allowed."""
    uncounted: int = 0
    """Folders too deep to be counted."""


class DiskCounter:
    """Started by the first question; ended by `close`, or with us: it reads a pipe that only we hold."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def count(self, folders: Sequence[Path], *, max_files: int) -> DiskUse:
        """Counts; a cancelled caller ends the process, and the next question starts another.

        Raises:
            OSError: it could not be started, or ended before it answered.
        """
        async with self._lock:
            process = await self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            answered = False
            try:
                question = {"folders": [str(folder) for folder in folders], "max_files": max_files}
                process.stdin.write(json.dumps(question).encode() + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
                if not line:
                    raise ChildProcessError("the process that counts disk use ended before it answered")
                answered = True
            finally:
                if not answered:
                    self._process = None
                    await _end(process)
            return DiskUse(**json.loads(line))

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await _end(process)

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(COUNTER), stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        return self._process


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    if process.stdin is not None:
        process.stdin.close()
    await process.wait()
