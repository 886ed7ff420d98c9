"""Waiting for a condition instead of for time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05


class WaitedTooLong(AssertionError):
    """A condition did not come true in time."""


async def wait_until(condition: Callable[[], object | Awaitable[object]], description: str, *, timeout_s: float = 10.0) -> None:
    """Returns when `condition` is true; looks at once, then at pauses that grow to 50 ms.

    Args:
        condition: called, and awaited when it answers an awaitable.
        description: what is waited for, for the failure's message.

    Raises:
        WaitedTooLong: it was still false after `timeout_s`; says what was waited for and the last answer.
    """
    give_up_s = time.monotonic() + timeout_s
    pause_s = FIRST_PAUSE_S
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return
        if time.monotonic() > give_up_s:
            raise WaitedTooLong(f"not within {timeout_s:g} s: {description} (last answer: {answer!r})")
        await asyncio.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, pause_s * 1.5)


def wait_in_thread(condition: Callable[[], object], description: str, *, timeout_s: float = 10.0) -> None:
    """`wait_until` for code without an event loop."""
    give_up_s = time.monotonic() + timeout_s
    pause_s = FIRST_PAUSE_S
    while True:
        answer = condition()
        if answer:
            return
        if time.monotonic() > give_up_s:
            raise WaitedTooLong(f"not within {timeout_s:g} s: {description} (last answer: {answer!r})")
        time.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, pause_s * 1.5)
