"""Waiting until no model call of a run is in flight. None begins any more: the run is paused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from trainer_client.run_pause import RunPause

FIRST_LOOK_S, LAST_LOOK_S = 0.02, 0.5


async def calls_have_ended(pause: RunPause, urls: Sequence[str], answering: Sequence[str], *, abort: bool) -> None:
    """Returns when workers said of every call at these servers that it ended.

    Args:
        answering: those of them that answer. Calls of a worker that died go with its lease and are aborted there; a server that is gone
            itself has no such calls any more.
        abort: ends them at the servers, as often as it takes (by the keepers of the pool); else they are let finish.

    Raises:
        PauseLost, StaleIncarnation
    """
    look_s = FIRST_LOOK_S
    while True:
        found = await pause.in_flight(list(urls), abort=abort)
        if not any(calls or (aborts and url in answering) for url, (calls, aborts) in found.items()):
            return
        await asyncio.sleep(look_s)
        look_s = min(LAST_LOOK_S, look_s * 1.5)
