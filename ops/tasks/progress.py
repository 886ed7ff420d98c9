"""How far a command is, on the error stream: a line that changes on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

EVERY_S = 10.0
"""Where no terminal is."""


class ProgressLine:
    """Says so. A context manager."""

    def __init__(self, *, every_s: float = EVERY_S) -> None:
        console = Console(file=sys.stderr, highlight=False)
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._every_s = every_s
        self._said_s = time.monotonic()
        self._last = ""

    def say(self, line: str) -> None:
        """The line as it is now."""
        if line == self._last:
            return
        self._last = line
        if self._live is not None:
            self._live.update(Text(line), refresh=True)
        elif time.monotonic() - self._said_s >= self._every_s:
            self._said_s = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
