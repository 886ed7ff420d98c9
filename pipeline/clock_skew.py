"""How far a machine's clock is from that of Redis, by which all times in the queue are."""

from __future__ import annotations

LARGE_MS = 1000
"""Clocks that are kept (NTP) are within tens of milliseconds. Beyond a second logs of nodes cannot be read side by side any more, and
announced ends (`--until`) are missed."""


def clock_skew_ms(asked_s: float, redis_s: float, answered_s: float) -> int:
    """How far a clock is ahead of that of Redis, whose time was asked between two moments of it: the least that explains all three."""
    if redis_s < asked_s:
        return round((asked_s - redis_s) * 1000)
    return -round(max(0.0, redis_s - answered_s) * 1000)
