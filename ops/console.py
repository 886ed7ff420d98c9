"""The console that commands print on."""

from __future__ import annotations

import os
import sys

from rich.console import Console

WIDTH_OF_A_FILE = 160
"""Columns where no terminal says how many it has: a record stays on one line for grep, and tables keep their cells."""


def open_console() -> Console:
    """Standard output, as wide as its terminal; into a pipe or a file, as wide as `COLUMNS` says, else `WIDTH_OF_A_FILE`."""
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else WIDTH_OF_A_FILE
    return Console(highlight=False, width=width)
