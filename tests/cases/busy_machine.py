"""Cases with limits on a machine that has no time for them.

The seconds in the files are those of a machine that waits for the case: a limit that a command meets because twenty processes wait for two
cores says nothing of the product. So a case that was not as it should be is run once more where the machine is busy, with all its
seconds, the limits as well as the bounds of what is expected, as many times as long as its processes have to wait for a core.
On any other machine what the first run found stands.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pipeline.usable_cores import usable_cores
from tests.cases.case import Case

BUSY = 3.0
"""Processes a core from which on it is: our own tests are two a core, and what they start comes in turn."""
MOST = 4.0
"""A case of ten seconds then has forty: both runs fit into the time of a test."""
SECONDS = frozenset({"timeout_s", "max_wall_s", "no_change_s"})


def times_waiting() -> float:
    """Processes that run or want to, a core, over the last minute."""
    return os.getloadavg()[0] / usable_cores()


def times_slower() -> float:
    """How many times slower than an idle machine this one is now; 1 = it is not busy."""
    waiting = times_waiting()
    return min(MOST, waiting) if waiting >= BUSY else 1.0


def with_more_time(case: Case, times: float) -> Case:
    """The case with all its seconds so many times as long."""
    return replace(case, input=_longer(case.input, times), expect=_longer(case.expect, times))


def _longer(part: Any, times: float) -> Any:  # any value of JSON
    if isinstance(part, Mapping):
        return {
            name: value * times if name in SECONDS and isinstance(value, int | float) else _longer(value, times)
            for name, value in part.items()
        }
    return [_longer(each, times) for each in part] if isinstance(part, list) else part
