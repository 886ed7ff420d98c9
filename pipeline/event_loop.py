"""How a process of the queue runs its main coroutine: on which event loop, and how often the garbage collector interrupts it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

GC_THRESHOLDS = (20_000, 20, 50)
"""A job is some hundred small objects that nearly all end without the collector. With Python's own thresholds it looks at them dozens of
times, for about a twentieth of what a job costs a worker."""


def run_process(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs until `main` returns, on uvloop where it is installed. Called once, when everything is imported."""
    gc.collect()
    gc.freeze()  # what is loaded by now stays, and need not be looked at again
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
