"""A holder that is up before anybody asks: starting a process of Python takes half of a sandbox's start.

1. It belongs to nothing: no lease, no folder, no record. Given to a sandbox it is as any other, and never comes back.
2. There is at most one. The next is launched a little after the start that took it: who just got a sandbox opens a shell in it, and a
   Python that starts beside it takes its core.
3. It ends with this process, however that ends, as every holder does: the socket between them closes.
"""

from __future__ import annotations

import asyncio

import structlog

from workers.sandbox.errors import SandboxStartError
from workers.sandbox.local.holder_client import Holder

log = structlog.get_logger(__name__)

REFILL_AFTER_S = 0.05
"""The first commands of who got the last one are answered by then."""


class SpareHolder:
    """One at most, on demand."""

    def __init__(self) -> None:
        self._ready: Holder | None = None
        self._launching: asyncio.Task[None] | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def ready(self) -> Holder | None:
        """The one that stands ready now."""
        return self._ready if self._ready is not None and not self._ready.gone.done() else None

    def take(self) -> Holder | None:
        """Hands it out; None when there is none, or it has ended."""
        taken, self._ready = self.ready, None
        return taken

    def refill(self) -> None:
        """Launches one, unless there is one, or nobody will want it."""
        if self._is_closed or self.ready is not None or self._launching is not None:
            return
        self._launching = asyncio.create_task(self._launch(), name="launch a spare holder")

    def refill_soon(self) -> None:
        """The same, a little later."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(REFILL_AFTER_S, self._refill_now)

    async def settle(self) -> None:
        """Until none is being launched; one that was to be a little later is at once."""
        if self._soon is not None:
            self._soon.cancel()
            self._refill_now()
        if self._launching is not None:
            await asyncio.wait((self._launching,))

    async def close(self) -> None:
        """Ends it, for good."""
        self._is_closed = True
        await self.settle()
        spare = self.take()
        if spare is not None:
            spare.begin_end(0.0)
            await spare.wait_ended()

    def _refill_now(self) -> None:
        self._soon = None
        self.refill()

    async def _launch(self) -> None:
        try:
            self._ready = await Holder.launch()
        except SandboxStartError as error:  # who asks for a sandbox launches one himself, and is told
            log.warning("no_spare_holder", why=str(error))
        finally:
            self._launching = None
