"""A log as plain lines."""

from __future__ import annotations

from workers.sandbox.terminal_text import plain_text


def lines_of(log: str) -> list[str]:
    """Without colours; of a line that rewrote itself the last state.

    Split at line feeds alone: `str.splitlines` also splits at form feeds and at separators of Unicode, which names of tests may hold.
    """
    return plain_text(log).split("\n")
