"""Holds back what we ourselves would change in a sandbox, while its files are copied: files we write, processes we start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


class Pause:
    """Changes go through until somebody holds; who holds waits for those under way."""

    def __init__(self) -> None:
        self._under_way = 0
        self._held = asyncio.Lock()
        self._none_under_way = asyncio.Event()
        self._none_under_way.set()

    async def begin(self) -> None:
        """Before a change; each is ended by one `end`."""
        async with self._held:
            self._under_way += 1
            self._none_under_way.clear()

    def end(self) -> None:
        """A change is done, however."""
        self._under_way -= 1
        if not self._under_way:
            self._none_under_way.set()

    @asynccontextmanager
    async def change(self) -> AsyncIterator[None]:
        """One change."""
        await self.begin()
        try:
            yield
        finally:
            self.end()

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """No change is under way in the block, and none begins. Those who hold take turns."""
        async with self._held:
            await self._none_under_way.wait()
            yield


async def to_its_end(work: Callable[[], T]) -> T:
    """Runs it in a thread; who is cancelled meanwhile waits for its end first."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise
