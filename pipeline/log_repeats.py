"""Warnings that repeat are counted, not written ten thousand times.

Of each event at most `MOST` lines a minute are let through. What was left out is told with the next line of that event after the minute
(`left_out`), or else with the next line of any event (`also_left_out`), or at the end of the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

import structlog

MOST = 20
"""A node with eight model servers of which each tells something twice is whole; a loop that retries twice a second is not."""
WINDOW_S = 60.0
BOUNDED = frozenset(("warning", "error", "critical", "exception"))
MOST_EVENTS = 1000
"""Names that are kept in mind; names are fixed phrases, so there are never so many."""


@dataclass(slots=True)
class _Window:
    ends_s: float
    lines: int = 0
    left_out: int = 0


class Repeats:
    """A structlog processor.

    Args:
        now_s: a clock that only goes forward.
    """

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._windows: dict[str, _Window] = {}
        self._lock = threading.RLock()  # a line may be written in the middle of one, by what the collector finds

    def __call__(self, _: object, method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
        with self._lock:
            now_s = self._now_s()
            if method in BOUNDED:
                self._count(str(event.get("event")), event, now_s)
            if others := self._over(now_s):
                event["also_left_out"] = others
            return event

    def left(self) -> dict[str, int]:
        """Event -> lines that were left out and not told yet; they count as told then."""
        with self._lock:
            return self._over(float("inf"))

    def _count(self, name: str, event: MutableMapping[str, object], now_s: float) -> None:
        window = self._windows.get(name)
        if window is None or window.ends_s <= now_s:
            if window is not None and window.left_out:
                event["left_out"] = window.left_out
            if window is None and len(self._windows) >= MOST_EVENTS:
                return
            window = self._windows[name] = _Window(now_s + WINDOW_S)
        if window.lines >= MOST:
            window.left_out += 1
            raise structlog.DropEvent
        window.lines += 1

    def _over(self, now_s: float) -> dict[str, int]:
        over = {name: window for name, window in self._windows.copy().items() if window.ends_s <= now_s}
        for name in over:
            self._windows.pop(name, None)
        return {name: window.left_out for name, window in over.items() if window.left_out}
