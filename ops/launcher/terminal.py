"""How the launcher speaks: plain lines, a little weight on a terminal, one live line where it can be rewritten."""

import os
import shutil
import sys
import time

QUIET_LINE_EVERY_S = 15.0
"""Without a terminal (CI, a log file) progress is a line now and then, so that a log shows life without being flooded."""


def say(text: str = "") -> None:
    """Print a line at once: children write to the same stream, and the order must hold."""
    print(text, flush=True)


def warn(text: str) -> None:
    """Print a line to stderr, after what was said before it."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)


def bold(text: str) -> str:
    """Weight for a headline, on a terminal that did not refuse it."""
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text


class LiveLine:
    """One line that tells what is going on: rewritten in place on a terminal, repeated now and then elsewhere."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self._is_drawn = False

    def show(self, text: str) -> None:
        """Tell the present state with the seconds since the start."""
        now = time.monotonic()
        line = f"  {now - self._started:4.0f} s  {text}"
        if sys.stdout.isatty():
            width = shutil.get_terminal_size().columns
            print(f"\r\x1b[K{line[: width - 1]}", end="", flush=True)
            self._is_drawn = True
        elif now - self._last >= QUIET_LINE_EVERY_S:
            say(line)
            self._last = now

    def clear(self) -> float:
        """Make room for a lasting line; returns the seconds since the start."""
        if self._is_drawn:
            print("\r\x1b[K", end="", flush=True)
            self._is_drawn = False
        return time.monotonic() - self._started
