"""Lines of a node's log, read: whole ones, and what a full disk has left of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from pipeline.logs import LINE_START

LEVELS = ("debug", "info", "warning", "error", "critical")
UNREADABLE = "unreadable"
"""Event of what is no line."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line."""

    raw: bytes
    """As it stands, without its end."""
    fields: dict[str, object]

    @property
    def timestamp(self) -> str:
        """UTC; ISO texts sort as their times do. Empty when it has none."""
        return str(self.fields.get("timestamp", ""))

    @property
    def severity(self) -> int:
        """Place of its level in `LEVELS`; unknown ones count as errors, so that they are seen."""
        level = self.fields.get("level")
        return LEVELS.index(level) if isinstance(level, str) and level in LEVELS else LEVELS.index("error")

    @property
    def is_unreadable(self) -> bool:
        """What stands there is no line; `fields` tells of it."""
        return self.fields.get("event") == UNREADABLE

    def names(self, unit: str) -> bool:
        """Whether one of its fields is, or lists, a job, group or run of that id."""
        named = [value for name, value in self.fields.items() if name not in ("event", "level")]
        return any(value == unit or (isinstance(value, list) and unit in value) for value in named)


def lines_of(raw: bytes) -> Iterator[Line]:
    """What stands between two ends of lines: one line, or half a line and the one that was appended to it."""
    if not raw:
        return
    if (line := _parsed(raw)) is not None:
        yield line
        return
    cut, *whole = raw.split(LINE_START)
    for piece in ([cut] if cut else []) + [LINE_START + rest for rest in whole]:
        yield _parsed(piece) or Line(piece, {"timestamp": _time_of(piece), "event": UNREADABLE, "text": piece.decode("utf-8", "replace")})


def _parsed(raw: bytes) -> Line | None:
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return Line(raw, found) if isinstance(found, dict) else None


def _time_of(piece: bytes) -> str:
    """Half a line has its time, if it has anything."""
    return piece[len(LINE_START) :].split(b'"')[0].decode("ascii", "replace") if piece.startswith(LINE_START) else ""
