"""Waiting until no model call of a run is in flight. None begins any more: the run is paused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from trainer_client.logs import Log
from trainer_client.run_pause import RunPause

log = Log(__name__)

FIRST_LOOK_S, LAST_LOOK_S = 0.02, 0.5
SILENT_S = 15.0
"""A server that does not answer is waited for so long: its calls can be neither ended nor told apart from lost ones."""


async def calls_have_ended(pause: RunPause, urls: Sequence[str], answering: Sequence[str], *, abort: bool) -> None:
    """Returns when workers said of every call at these servers that it ended; of calls at a server that does not answer, after a while too.

    Args:
        answering: those of them that answer. Calls of a worker that died go with its lease and are aborted there; a server that is gone
            itself has no such calls any more.
        abort: ends them at the servers, as often as it takes (by the keepers of the pool); else they are let finish.

    Raises:
        PauseLost, StaleIncarnation
    """
    look_s, until_s = FIRST_LOOK_S, time.monotonic() + SILENT_S
    while True:
        found = await pause.in_flight(list(urls), abort=abort)
        left = {url for url, (calls, aborts) in found.items() if calls or (aborts and url in answering)}
        if not left or (left.isdisjoint(answering) and time.monotonic() >= until_s):
            if left:
                log.warning("calls_left_behind", servers=sorted(left), why="their servers do not answer")
            return
        await asyncio.sleep(look_s)
        look_s = min(LAST_LOOK_S, look_s * 1.5)
