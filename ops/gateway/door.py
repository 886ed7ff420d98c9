"""Whether `/process` takes jobs: opened by `/start`, closed by `/stop`, and remembered over a restart of the gateway.

What is in flight is not remembered: a call and its gateway end together.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ops.gateway.memory import Memory


class Door:
    """The state between `/start` and `/stop`."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.closed = asyncio.Event()
        """Set when this opening ends; each one has its own."""
        self.jobs: Counter[str] = Counter()
        """Full ids of jobs that calls of `/process` wait for, with how many do."""

    @property
    def is_open(self) -> bool:
        return "open" in self._memory

    async def open(self) -> None:
        """From here on `/process` takes jobs."""
        await self._memory.note("open", holds=True)
        self.closed = asyncio.Event()

    @contextmanager
    def waiting(self, job: str) -> Iterator[asyncio.Event]:
        """A call waits for a job while the block runs; gives what tells it of the door's end."""
        self.jobs[job] += 1
        try:
            yield self.closed
        finally:
            self.jobs[job] -= 1
            if not self.jobs[job]:
                del self.jobs[job]

    async def close(self) -> None:
        """Takes no more jobs and lets waiting calls go."""
        await self._memory.note("open", holds=False)
        self.closed.set()


__all__ = ["Door"]
