"""Time as something that is handed in, so that a test can hold it still.

Durations here come from the monotonic clock. Deadlines, leases and due times of the queue are judged by Redis `TIME` inside the scripts:
no worker's wall clock decides anything about a job.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of seconds."""

    def monotonic(self) -> float:
        """Seconds that only go forward; for durations."""

    def wall(self) -> float:
        """Seconds since the epoch; for people."""


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class SimulatedClock:
    """A clock that stands still until it is moved."""

    def __init__(self, at: float = 1_000_000.0) -> None:
        self.at = at

    def monotonic(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.at

    def advance(self, seconds: float) -> None:
        """Moves the clock forward."""
        self.at += seconds
