"""Whether a node may be given sandboxes to start, and why not.

    well ── `FAILURES` failed starts in a row ──> degraded ── a plain sandbox starts, and ends ──> well
    well ── a teardown that is not proven ──────> degraded ── the janitor proves it, the last one ──> well

1. A degraded node starts nothing for workers; what is attached or parked goes on. It says why to everybody who is connected, at once.
2. It tries by itself: a plain sandbox of its own, at once and then ever more rarely. So starts that only fail for what their tasks ask cost
   the node some milliseconds, and one that is broken takes no job down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import structlog

from workers.sandbox.base import Probe

log = structlog.get_logger(__name__)

FAILURES = 5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
"""Between the node's own tries. What makes every start fail (a full disk, no memory, a lost mount) passes in minutes, or not at all."""


class NodeHealth:
    """What is known of one node."""

    def __init__(self) -> None:
        self.failed_in_a_row = 0
        self.watchers: list[Callable[[str], None]] = []
        """Told of every change: why the node is degraded, empty = it is well."""
        self._starts_fail = ""
        self._leaks: dict[str, str] = {}
        self._said = ""
        self._failing = asyncio.Event()

    @property
    def degraded(self) -> str:
        """Why the node starts nothing; empty = it does."""
        return "; ".join(filter(None, (self._starts_fail, *self._leaks.values())))

    @property
    def leaked(self) -> tuple[str, ...]:
        """Sandboxes whose end could not be proven."""
        return tuple(self._leaks)

    def start_failed(self, why: str) -> None:
        """A start failed for a reason that is not its caller's."""
        self.failed_in_a_row += 1
        if self.failed_in_a_row >= FAILURES and not self._starts_fail:
            self._starts_fail = f"{self.failed_in_a_row} starts in a row failed, the last one: {why}"
            self._failing.set()
            self._tell()

    def started(self) -> None:
        """A sandbox came up."""
        self.failed_in_a_row = 0
        self._starts_fail = ""
        self._failing.clear()
        self._tell()

    def not_proven(self, sandbox_id: str, why: str) -> None:
        """A sandbox was ended, and something of it may be left."""
        self._leaks[sandbox_id] = why
        self._tell()

    def proven(self, sandbox_id: str) -> None:
        """Nothing of a sandbox is left."""
        if self._leaks.pop(sandbox_id, None) is not None:
            self._tell()

    async def recover(self, try_plain: Callable[[], Awaitable[Probe]], random: Random) -> None:
        """Tries plain sandboxes while starts fail; runs until it is cancelled."""
        while True:
            await self._failing.wait()
            pause_s = FIRST_PAUSE_S
            while self._failing.is_set():
                probe = await try_plain()
                if probe.works:
                    self.started()
                    break
                log.warning("node_still_degraded", why=probe.why, again_in_s=round(pause_s, 1))
                await asyncio.sleep(pause_s * random.uniform(0.75, 1.25))
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    def _tell(self) -> None:
        now = self.degraded
        if now == self._said:
            return
        if now:
            log.error("node_degraded", why=now)
        else:
            log.info("node_well_again", was=self._said)
        self._said = now
        for watcher in self.watchers:
            watcher(now)
