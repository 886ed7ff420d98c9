"""What a launcher does beside keeping its processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine

CLOCK_LOOK_S = 5.0
"""The clock of the machine may be set while we wait for a moment on it."""


@contextlib.asynccontextmanager
async def beside(*coroutines: Coroutine[object, object, None]) -> AsyncIterator[None]:
    """Runs them beside what is done inside, and ends them with it. The first that fails ends it with its error."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in coroutines]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def until_clock(at_s: float) -> None:
    """Returns when the clock of the machine says so much, s since 1970."""
    while True:
        left_s = at_s - time.time()
        if left_s <= 0:
            return
        await asyncio.sleep(min(left_s, CLOCK_LOOK_S))
