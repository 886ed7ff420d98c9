"""Whether `/process` takes jobs: opened by `/start`, closed by `/stop`, and remembered over a restart of the gateway.

It stands in Redis, in a key of its own with an expiry, since a trainer that opened it does not learn of a restart. What is in flight
stands in memory: a call and its gateway end together.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask

OPEN = b"open"


class Door:
    """The state between `/start` and `/stop`.

    Args:
        ttl_s: how long an open door is remembered after its last use.
    """

    def __init__(self, client: AsyncClient, keys: Keys, run: str, *, ttl_s: float) -> None:
        self._client = client
        self._key = keys.gateway(run)
        self._ttl_ms = int(ttl_s * 1000)
        self.is_open = False
        self.closed = asyncio.Event()
        """Set when this opening ends; each one has its own."""
        self.jobs: Counter[str] = Counter()
        """Full ids of jobs that calls of `/process` wait for, with how many do."""

    async def load(self) -> None:
        """Opens it when an earlier process of this run left it open."""
        if await ask(self._client, "GET", self._key) == OPEN:
            await self.open()

    async def open(self) -> None:
        """From here on `/process` takes jobs."""
        await self.renew()
        self.is_open, self.closed = True, asyncio.Event()

    async def renew(self) -> None:
        """Makes it remembered for as long again."""
        await ask(self._client, "SET", self._key, OPEN, "PX", self._ttl_ms)

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

    async def close(self) -> list[str]:
        """Takes no more jobs and lets waiting calls go; returns the ids of their jobs."""
        self.is_open = False
        jobs = list(self.jobs)
        self.closed.set()
        await ask(self._client, "DEL", self._key)
        return jobs


__all__ = ["Door"]
