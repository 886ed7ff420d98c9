"""What a client cancelled: asked again after an outage, in case Redis lost it."""

from __future__ import annotations

import time
from collections import deque
from typing import Literal

from pipeline.errors import InvalidRequest, RunClosed
from pipeline.messages import CancelReason
from pipeline.scripts.calls import Scripts
from pipeline.scripts.step_calls import StepScripts
from trainer_client.calls import Calls

REPEAT_WINDOW_S = 60.0
"""Cancels of this long ago can be asked again; older ones have reached every server that may take over."""

Kind = Literal["job", "group", "step", "run"]


class Cancels:
    """The cancels of one client. Each is idempotent, so one that was not lost changes nothing when it is asked again."""

    def __init__(self, run: str, incarnation: int, scripts: Scripts, step_scripts: StepScripts, calls: Calls) -> None:
        self._run = run
        self._incarnation = incarnation
        self._scripts = scripts
        self._step_scripts = step_scripts
        self._calls = calls
        self._recent: deque[tuple[float, Kind, str, CancelReason]] = deque()

    async def ask(self, kind: Kind, what: str, reason: CancelReason) -> dict[str, int]:
        """Cancels a job, a group, a step (by its index) or the run; see `Run`.

        Raises:
            InvalidRequest: there is no such step, or it has ended.
        """
        counts = await self._send(kind, what, reason)
        self._recent.append((time.monotonic(), kind, what, reason))
        while self._recent[0][0] < time.monotonic() - REPEAT_WINDOW_S:
            self._recent.popleft()
        return counts

    async def repeat(self) -> int:
        """Asks again for the cancels of the last minute; returns how many jobs they met that had not heard of it."""
        met = 0
        for at, kind, what, reason in list(self._recent):
            if at >= time.monotonic() - REPEAT_WINDOW_S:
                try:
                    met += (await self._send(kind, what, reason)).get("settled", 0)
                except (InvalidRequest, RunClosed):
                    continue  # it has ended, as it should
        return met

    async def _send(self, kind: Kind, what: str, reason: CancelReason) -> dict[str, int]:
        if kind == "step":
            return await self._calls.make(self._step_scripts.cancel_step, self._run, self._incarnation, int(what), reason.value)
        if kind == "run":
            return await self._calls.make(self._scripts.cancel, "run", [what], reason.value, incarnation=self._incarnation)
        return await self._calls.make(self._scripts.cancel, kind, [what], reason.value)
