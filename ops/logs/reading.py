"""The last lines of nodes' logs, and those that come, by time."""

from __future__ import annotations

import contextlib
import heapq
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ops.logs.following import LogFollower
from ops.logs.lines import LEVELS, Line, lines_of
from ops.logs.view import as_text
from pipeline.log_file import log_files

LOOK_S = 0.3
LAST_WORDS = 25
"""Lines."""
LAST_BYTES = 1 << 19
"""Of the log that are looked through for them: on the loop of the launcher, so a few milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which lines."""

    level: str = "debug"
    """The lowest."""
    unit: str = ""
    """A job, group or run; empty = all lines."""
    process: str = ""
    pid: int = 0

    def has(self, line: Line) -> bool:
        """Whether a line is one of them."""
        return (
            line.severity >= LEVELS.index(self.level)
            and (not self.unit or line.names(self.unit))
            and (not self.process or line.fields.get("process") == self.process)
            and (not self.pid or line.fields.get("pid") == self.pid)
        )

    def may_have(self, raw: bytes) -> bool:
        """A quick look: false when none of what is in there is wanted."""
        return not self.unit or self.unit.encode() in raw


def last_words(log: Path, process: str, pid: int, *, printed: str) -> str:
    """What a process that ended said last: of the log of its node, and what it printed beside it."""
    wanted, told = Wanted(process=process, pid=pid), list[str]()
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
        for raw in file.read().split(b"\n"):
            for line in lines_of(raw):
                if wanted.has(line):
                    told += as_text("", line, with_node=False, colour=False)
    return "\n".join([*told, *printed.splitlines()][-LAST_WORDS:])


def last_lines(paths: Mapping[str, Path], wanted: Wanted, most: int) -> list[tuple[str, Line]]:
    """The last lines of some logs, with the node of each, the oldest first."""
    found = [[(node, line) for line in _last_of(path, wanted, most)] for node, path in paths.items()]
    return list(heapq.merge(*found, key=lambda pair: pair[1].timestamp))[-most:]


def followed_lines(
    paths: Callable[[], Mapping[str, Path]], wanted: Wanted, *, pause: Callable[[float], object] = time.sleep
) -> Iterator[list[tuple[str, Line]]]:
    """What comes after now, in batches by time, for ever.

    Args:
        paths: of the logs; asked at each look, as nodes come.
    """
    followers: dict[str, LogFollower] = {}
    for node, path in paths().items():
        followers[node] = LogFollower(path)
        followers[node].skip()
    yield []
    while True:
        for node, path in paths().items():
            followers.setdefault(node, LogFollower(path))
        batch = [
            (node, line) for node, follower in followers.items() for raw in follower.read() for line in lines_of(raw) if wanted.has(line)
        ]
        yield sorted(batch, key=lambda pair: pair[1].timestamp)
        pause(LOOK_S)


def _last_of(path: Path, wanted: Wanted, most: int) -> list[Line]:
    found: list[Line] = []
    for file in reversed(log_files(path)):
        last: deque[Line] = deque(maxlen=most - len(found))
        try:
            with file.open("rb") as opened:
                for raw in opened:
                    if wanted.may_have(raw):
                        last.extend(line for line in lines_of(raw.rstrip(b"\n")) if wanted.has(line))
        except FileNotFoundError:  # rotated away
            continue
        found = [*last, *found]
        if len(found) >= most:
            break
    return found
