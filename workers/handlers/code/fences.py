"""The program in a text: what stands between the lines that fence it off."""

from __future__ import annotations

import re

_FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})(?P<info>[^`]*)\Z")
_PYTHON = frozenset(("python", "py", "python3"))


def last_program(text: str) -> str | None:
    """The last closed fence that says Python; without one, the last closed fence that says nothing. None when there is neither.

    A fence that is not closed is no program: the text was cut off, or the model had not made up its mind.
    """
    named: str | None = None
    bare: str | None = None
    marks, info = "", ""
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        fence = _FENCE.match(line)
        if not marks:
            if fence:
                marks, info, lines = fence["marks"], fence["info"].strip().lower(), []
        elif fence and not fence["info"].strip() and fence["marks"][0] == marks[0] and len(fence["marks"]) >= len(marks):
            language = re.split(r"[\s{,]", info, maxsplit=1)[0] if info else ""
            if language in _PYTHON:
                named = "\n".join(lines)
            elif not info:
                bare = "\n".join(lines)
            marks = ""
        else:
            lines.append(line)
    return named if named is not None else bare


def fenced(program: str) -> str:
    """A program as a final message holds it."""
    longest = max((len(run) for run in re.findall(r"`+", program)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}python\n{program}\n{marks}"
