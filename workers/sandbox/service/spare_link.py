"""A connection to the node service that is up before anybody asks: it has greeted, and has no sandbox.

1. It is used once, for one sandbox; the next is made a little after that, when the first command in it has been answered.
2. There is at most one, and none before the first sandbox: who only asks for what a node has needs none.
3. One that has ended meanwhile, with its service, is none: who wants one connects, and hears why he cannot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from workers.sandbox.service.link import Link, ServiceNotThere

AFTER_S = 0.05
"""From a sandbox to the connection for the next one."""


class SpareLink:
    """One at most.

    Args:
        connect: makes a connection that has greeted.
    """

    def __init__(self, connect: Callable[[], Awaitable[Link]]) -> None:
        self._connect = connect
        self._ready: Link | None = None
        self._making: asyncio.Task[None] | None = None

    @property
    def ready(self) -> Link | None:
        """The one that stands ready now."""
        return self._ready if self._ready is not None and not self._ready.ended else None

    def take(self) -> Link | None:
        """Hands it out; None when there is none."""
        taken, self._ready = self.ready, None
        return taken

    def refill(self) -> None:
        """Sees to it that there will be one."""
        if self.ready is None and self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._make(), name="connect to the node service for the next sandbox")

    async def settle(self) -> None:
        """Until none is being made."""
        if self._making is not None:
            await asyncio.wait((self._making,))

    async def close(self) -> None:
        """Ends it. `refill` may be asked again."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait((self._making,))
        if self._ready is not None:
            self._ready.close()
            self._ready = None

    async def _make(self) -> None:
        try:
            await asyncio.sleep(AFTER_S)
            self._ready = await self._connect()
        except ServiceNotThere:  # who asks for a sandbox hears of it
            return
        finally:
            self._making = None
