"""Reads what comes into a log, through its rotations, from where one was.

How far each file was read is kept under the file's first bytes: they hold the time of its first line, and stay when it is renamed. A number
of a file is given to the next one as soon as it is free.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pipeline.log_file import MOST_FILES, log_files

HEAD_BYTES = 48
"""`{"timestamp":"2026-11-30T21:19:15.123456Z","level"`."""
PIECE_BYTES = 1 << 20
MOST_PLACES = 2 * MOST_FILES
"""A file that is being renamed in this moment may not be seen: its place is kept."""
LONGEST_LINE = 4 << 20
"""What has no end by then is passed over."""


class LogFollower:
    """One reader of one log.

    Args:
        path: of the newest file.
        places: as `places` was before, to go on there.
    """

    def __init__(self, path: Path, places: Mapping[str, int] | None = None) -> None:
        self._path = path
        self.places: dict[str, int] = dict(places or {})
        """First bytes of a file -> bytes of it that were read."""
        self._reads = ""
        """The file of the last line."""

    def skip(self) -> None:
        """Passes over all that is there."""
        for _ in self.read():
            pass

    def put_back(self, line: bytes) -> None:
        """The line that was read last is read again; reading ends with it."""
        self.places[self._reads] -= len(line) + 1

    def read(self) -> Iterator[bytes]:
        """Lines that have come, without their ends, in the order of the files. A line is read when it has its end.

        Raises:
            OSError: a file cannot be read. What was read before was given.
        """
        for path in log_files(self._path):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:  # renamed or removed since the look
                continue
            with os.fdopen(fd, "rb") as file:
                head = file.read(HEAD_BYTES)
                if len(head) < HEAD_BYTES:
                    continue
                name = head.decode("latin-1")
                at = self.places.pop(name, 0)
                self.places[name] = at  # at the end: read last
                if at > os.fstat(fd).st_size:
                    at = 0
                file.seek(at)
                rest = b""
                while piece := file.read(PIECE_BYTES):
                    *lines, rest = (rest + piece).split(b"\n")
                    self._reads = name
                    for line in lines:
                        at += len(line) + 1
                        self.places[name] = at
                        yield line
                    if len(rest) > LONGEST_LINE:
                        at += len(rest)
                        self.places[name], rest = at, b""
        while len(self.places) > MOST_PLACES:
            del self.places[next(iter(self.places))]
