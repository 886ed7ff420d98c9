r"""Finding the final answer: the last `\boxed{...}` of a response, and only if it is closed.

What a policy boxed last is what it answers. A box that is never closed is no answer, and an earlier box does not step in for it:
a response that was cut off while it changed its mind must not score for the value it gave up.
"""

from __future__ import annotations

import re

MAX_BOX_CHARS = 24_000
"""A box longer than this is no answer; it bounds the scan however long the response is. Room for numbers of many thousand digits."""

MAX_NESTING = 8
"""Boxes looked at around the last one; keeps a text of nothing but openings linear too."""

_OPENING = re.compile(r"\\boxed\s*\{")
_STOPS = re.compile(r"\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""Content of the last box, or None when there is none or it is not closed.

    A box inside a box belongs to the outer one, so `\boxed{\boxed{3} or \boxed{4}}` is one answer and not the 4 alone.
    The time is linear in the length of the text, whatever it holds.
    """
    openings = list(_OPENING.finditer(text))
    if not openings:
        return None
    content = _closed(text, openings[-1].end())
    if content is None:
        return None
    end = openings[-1].end() + len(content)
    for outer in reversed(openings[-1 - MAX_NESTING : -1]):
        wider = _closed(text, outer.end())
        if wider is not None and outer.end() + len(wider) >= end:
            content, end = wider, outer.end() + len(wider)
    return content


def has_box(text: str) -> bool:
    """Whether the text opens a box at all; tells a missing answer from an unclosed one."""
    return _OPENING.search(text) is not None


def _closed(text: str, start: int) -> str | None:
    """The text from `start` to the brace that closes it; escaped braces do not count."""
    depth = 1
    for stop in _STOPS.finditer(text, start, min(len(text), start + MAX_BOX_CHARS)):
        symbol = stop.group()
        if symbol == "{":
            depth += 1
        elif symbol == "}":
            depth -= 1
            if depth == 0:
                return text[start : stop.start()]
    return None
