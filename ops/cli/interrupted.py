"""Ctrl-C or SIGTERM on a command that works in the foreground: it gives back what it holds, and ends without a traceback."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import typer

T = TypeVar("T")
EXIT_INTERRUPTED = 130


def quietly(work: Coroutine[Any, Any, T], *, said: str = "stopped; what was started here has ended") -> T:
    """Runs the work of a command to its end, or until it is interrupted: then it is cancelled, and this says so."""
    try:
        return asyncio.run(_until_told(work))
    except (KeyboardInterrupt, asyncio.CancelledError):
        typer.echo(said, err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


async def _until_told(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None  # a coroutine that runs is in one
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work
