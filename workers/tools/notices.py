"""What a model reads of limits that its sandbox has met: a line each, in brackets, as everything that is not output."""

from __future__ import annotations

from collections.abc import Sequence

MOST_LINES = 5
"""A command that goes on over a bound has something ended in it each second; the last ones say what matters."""


def notice_lines(notices: Sequence[str]) -> str:
    """The notices of one result; empty when it has none."""
    earlier = len(notices) - MOST_LINES
    head = [f"[{earlier} more of what follows came before.]"] if earlier > 0 else []
    return "\n".join([*head, *(f"[{notice}]" for notice in notices[-MOST_LINES:])])
