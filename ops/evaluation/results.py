"""The results of an evaluation as a file that grows: what is in it has been done, and is not done again.

    {"header": {"task": ..., "digest": ..., "n": ..., ...}}
    {"row": "own-001", "samples": [{"score": 1.0, "passes": true, ...}, ...]}

Invariants
    - A row is written whole, with all its samples, or not at all; a line that a crash cut short is taken away before more is written.
    - A file says what it is of. It is only ever gone on with by the same evaluation.
    - What is written is on disk before Redis lets go of it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from pipeline.errors import InvalidRequest, RollstreamError


class NotThisEvaluation(InvalidRequest):
    """The file is of another evaluation, or is none."""


class FileTaken(RollstreamError):
    """Another process is writing it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """A row with all its samples."""

    row: str
    samples: tuple[Mapping[str, Any], ...]  # as JSON

    @property
    def scores(self) -> tuple[float | None, ...]:
        """None where a sample is not valid."""
        return tuple(sample["score"] for sample in self.samples)

    @property
    def n_valid(self) -> int:
        return sum(score is not None for score in self.scores)

    @property
    def n_passed(self) -> int:
        return sum(sample["passes"] for sample in self.samples)


class ResultsFile:
    """A file of results, locked while it is open. A context manager.

    Args:
        header: what the evaluation is; a file that is there must have the same `task`, `digest` and `n`.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path = path
        self._header = header
        self._rows: dict[str, RowResult] = {}
        self._fd = -1

    @property
    def rows(self) -> Mapping[str, RowResult]:
        """What is in it, by row, in the order of its lines."""
        return self._rows

    def add(self, rows: Sequence[RowResult]) -> None:
        """Writes rows, and returns when they are on disk."""
        lines = b"".join(orjson.dumps({"row": row.row, "samples": row.samples}) + b"\n" for row in rows)
        _write(self._fd, lines)
        os.fsync(self._fd)
        self._rows |= {row.row: row for row in rows}

    def __enter__(self) -> Self:
        """Opens it, or makes it.

        Raises:
            NotThisEvaluation, FileTaken
            InvalidRequest: it cannot be made.
        """
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InvalidRequest(f"{self.path}: {error.strerror}", field="out") from error
        try:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise FileTaken(f"{self.path} is being written by another process: wait for it, or name another file with --out") from error
            self._go_on()
        except BaseException:
            os.close(self._fd)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._fd)

    def _go_on(self) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if content and not lines and not content.startswith(b'{"header":'):
            raise NotThisEvaluation(f"{self.path} is no file of results: name another with --out", field="out")
        if lines:
            self._check(lines[0])
        for number, line in enumerate(lines[1:], start=2):
            row = _row(line)
            if row is None:
                raise NotThisEvaluation(f"{self.path}:{number} is no row of results: name another file with --out", field="out")
            self._rows[row.row] = row
        os.ftruncate(self._fd, len(whole))
        if not lines:
            _write(self._fd, orjson.dumps({"header": self._header}) + b"\n")

    def _check(self, line: bytes) -> None:
        header = _object(line).get("header")
        if not isinstance(header, dict):
            raise NotThisEvaluation(f"{self.path} is no file of results: name another with --out", field="out")
        other = {name: header.get(name) for name in ("task", "digest", "n") if header.get(name) != self._header[name]}
        if other:
            words = ", ".join(f"{name} {value!r} instead of {self._header[name]!r}" for name, value in other.items())
            raise NotThisEvaluation(f"{self.path} is of another evaluation ({words}): name another file with --out", field="out")


def _row(line: bytes) -> RowResult | None:
    match _object(line):
        case {"row": str(row), "samples": list(samples)} if all(isinstance(sample, dict) for sample in samples):
            return RowResult(row=row, samples=tuple(samples))
        case _:
            return None


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _write(fd: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]
