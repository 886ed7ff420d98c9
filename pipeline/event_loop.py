"""How a process of the queue runs its main coroutine: on which event loop, how often the garbage collector interrupts it, and how it ends.

When the main coroutine has returned, the process ends, also over work that does not let itself be interrupted: `asyncio.run` alone would
wait for it for ever.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import traceback
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

log = structlog.get_logger(__name__)
Result = TypeVar("Result")

GC_THRESHOLDS = (20_000, 20, 50)
"""A job is some hundred small objects that nearly all end without the collector. With Python's own thresholds it looks at them dozens of
times, for about a twentieth of what a job costs a worker."""
LAST_TASKS_S = 2.0
"""Tasks that are left have this long to end."""
EXIT_FAILED = 1


def run_process(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs until `main` returns, on uvloop where it is installed. Called once, when everything is imported.

    A result that is a number is the exit code of a process that has to end over work that goes on.
    """
    gc.collect()
    gc.freeze()  # what is loaded by now stays, and need not be looked at again
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_to_its_end(main))
    return uvloop.run(_to_its_end(main))


async def _to_its_end(main: Coroutine[Any, Any, Result]) -> Result:
    """Runs `main` and sees to it that nothing is left which would keep the loop."""
    try:
        result = await main
    except BaseException:
        if await _deaf_tasks():
            traceback.print_exc()
            _end_now(EXIT_FAILED)
        raise
    if await _deaf_tasks():
        _end_now(result if isinstance(result, int) else 0)
    return result


async def _deaf_tasks() -> bool:
    """Interrupts what is left; whether some of it goes on."""
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    if not left:
        return False
    _, deaf = await asyncio.wait(left, timeout=LAST_TASKS_S)
    if deaf:
        log.error("process_ends_over_work", tasks=sorted(task.get_name() for task in deaf))
    return bool(deaf)


def _end_now(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
