"""Lines of a log as people read them: time in UTC, level, process, event, fields. What a terminal would obey is spelt out."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from ops.logs.lines import Line
from ops.visible_text import visible_line

SHOWN_FIRST = ("timestamp", "level", "node", "process", "pid", "event")
COLOURS = {"debug": "2", "warning": "33", "error": "31", "critical": "31;1"}


def as_text(node: str, line: Line, *, with_node: bool, colour: bool) -> Iterator[str]:
    """One line of a terminal, and one for each line of a text that has several."""
    fields = line.fields
    level = str(fields.get("level", "?"))
    time = line.timestamp[:23].replace("T", " ") or "????-??-?? ??:??:??.???"
    where = f"{node} {fields.get('process', '?')}" if with_node else str(fields.get("process", "?"))
    short, long = [], []
    for name, value in fields.items():
        if name in SHOWN_FIRST:
            continue
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        if "\n" in text.strip("\n"):
            long += [f"    {name}:", *(f"    | {part}" for part in text.strip("\n").split("\n"))]
        else:
            short.append(f"{name}={text.strip()!r}" if isinstance(value, str) and " " in text else f"{name}={text.strip()}")
    head = visible_line(f"{time}Z {level:8}{where}  {fields.get('event', '?')}  {' '.join(short)}".rstrip())
    code = COLOURS.get(level, "")
    yield f"\x1b[{code}m{head}\x1b[0m" if colour and code else head
    yield from (visible_line(part) for part in long)
