"""What many ask for in one turn of the event loop goes out as one call: a cancel of a group ends dozens of requests at one moment, and each
by a call of its own would keep server and worker busy for as long as the cancel may take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Gathered(Generic[Item]):
    """Gathers items, then sends them.

    Args:
        send: takes all that was gathered; its error goes to each that asked.
        name: of the tasks that send.
    """

    def __init__(self, send: Callable[[Sequence[Item]], Awaitable[None]], name: str) -> None:
        self._send = send
        self._name = name
        self._items: list[Item] = []
        self._gathering: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()

    async def __call__(self, *items: Item) -> None:
        """Returns when the items were sent; who is cancelled meanwhile leaves them to be sent."""
        self._items += items
        if self._gathering is None:
            self._gathering = asyncio.create_task(self._send_all(), name=self._name)
            self._sending.add(self._gathering)
            self._gathering.add_done_callback(self._sent)
        await asyncio.shield(self._gathering)

    async def close(self) -> None:
        """Returns when nothing is on its way."""
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _send_all(self) -> None:
        await asyncio.sleep(0)  # others of this turn come with us
        items, self._items, self._gathering = self._items, [], None
        await self._send(items)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may be gone; it is not lost to those who wait
