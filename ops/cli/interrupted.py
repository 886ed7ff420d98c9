"""Ctrl-C on a command that works in the foreground: it gives back what it holds, and ends without a traceback."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import typer

T = TypeVar("T")
EXIT_INTERRUPTED = 130


def quietly(work: Coroutine[Any, Any, T]) -> T:
    """Runs the work of a command to its end, or until Ctrl-C."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        typer.echo("stopped; what was started here has ended", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
