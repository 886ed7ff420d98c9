"""Servers that failed this process, avoided by it for a while, longer each time.

The pool hears of it too, but a look takes a second: meanwhile the server that all have fled from has the least load, and would be chosen
next.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

FIRST_S, LONGEST_S = 0.5, 30.0


class Suspicions:
    """The servers that one process avoids.

    Args:
        first_s: how long one is avoided at first.
    """

    def __init__(self, *, first_s: float = FIRST_S, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._first_s = first_s
        self._monotonic = monotonic
        self._suspects: dict[str, tuple[float, float]] = {}
        """By server: avoided until, and for how long that was."""

    def avoided(self) -> list[str]:
        """Servers not to be chosen now."""
        now_s = self._monotonic()
        return [url for url, (until_s, _) in self._suspects.items() if now_s < until_s]

    @property
    def next_end_s(self) -> float:
        """Seconds until one more may be chosen; the longest time when none is avoided."""
        now_s = self._monotonic()
        return min((until_s - now_s for until_s, _ in self._suspects.values() if now_s < until_s), default=LONGEST_S)

    def suspect(self, url: str) -> None:
        """It failed."""
        now_s = self._monotonic()
        until_s, before_s = self._suspects.get(url, (0.0, 0.0))
        if now_s >= until_s:
            for_s = min(LONGEST_S, max(self._first_s, 2 * before_s))
            self._suspects[url] = (now_s + for_s, for_s)
            log.warning("model_server_suspected", server=url, avoided_for_s=for_s)

    def trust(self, url: str) -> None:
        """It answered."""
        self._suspects.pop(url, None)
