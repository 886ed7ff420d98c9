"""Text of models and tools made safe to show: what a terminal would obey, or not show, is spelt out."""

from __future__ import annotations

import unicodedata

KEPT = "\n"
"""What else ends a line or moves the cursor is spelt."""


def visible(text: str) -> str:
    """The text with every control, format, surrogate and unassigned character as its escape; line ends stay."""
    if text.isprintable():
        return text
    return "".join(c if c in KEPT or c.isprintable() or unicodedata.category(c) == "Zs" else _spelt(c) for c in text)


def visible_line(text: str) -> str:
    """As `visible`, in one line: a name or a label that ends lines could write lines of ours."""
    return visible(text).replace("\n", r"\n")


def _spelt(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
