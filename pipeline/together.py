"""Calls side by side of which none outlives the others.

`asyncio.gather` leaves the others at work when one fails: they would use, and open anew, the connections that its caller is closing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def together(*calls: Awaitable[T]) -> list[T]:
    """All answers, in order. When one raises, or this is cancelled, the others are cancelled and have ended before this returns."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)


__all__ = ["together"]
