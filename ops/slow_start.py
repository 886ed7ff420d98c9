"""Waiting for processes that a command has started: on a busy machine a Python takes half a minute to import what it needs.

What ended is seen by whoever started it. So the limit is for one that hangs, and a person hears meanwhile that the wait goes on, and why
it may.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from pipeline.errors import RollstreamError
from pipeline.usable_cores import usable_cores

LIMIT_S = 600.0
"""Twenty times what the slowest start took that was seen (30 s, 22 processes waiting for two cores)."""
SAY_EVERY_S = 10.0
"""The first time after so long: a start on a machine with time for it takes two seconds, and nothing is said."""


class StartTooSlow(RollstreamError):
    """It was not up within the limit."""


class SlowStart:
    """One wait.

    Args:
        what: names what is waited for, in the plural: "the demo's processes".
        say: shows a person a line.
        clock: seconds that only grow.
    """

    def __init__(
        self, what: str, say: Callable[[str], None], *, limit_s: float = LIMIT_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._say = say
        self._limit_s = limit_s
        self._clock = clock
        self._began_s = clock()
        self._said_s = 0.0

    def goes_on(self) -> None:
        """To be called at each look that finds it not up.

        Raises:
            StartTooSlow
        """
        waited_s = self._clock() - self._began_s
        if waited_s > self._limit_s:
            raise StartTooSlow(f"{self._what} were not up within {self._limit_s:.0f} s{_load()}")
        if waited_s - self._said_s >= SAY_EVERY_S:
            self._said_s = waited_s
            self._say(f"{self._what} are starting, for {waited_s:.0f} s now{_load()}")


def _load() -> str:
    """How busy the machine is, where the system says it."""
    if not hasattr(os, "getloadavg"):
        return ""
    return f" (load {os.getloadavg()[0]:.0f}, {usable_cores()} cores)"
