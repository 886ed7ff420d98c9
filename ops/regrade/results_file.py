"""What a regrade has found so far, as a file of JSON lines: one a job, as it is found. A command that is started again with it goes on.

The last line of a job holds. A line that was cut, by a kill in the middle of a write, is dropped with the next one; so a file is whole or
lacks its last job. A job that could not be judged, or was not there, is tried again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import orjson

from ops.regrade.difference import Change, Regraded
from pipeline import codec
from pipeline.errors import InvalidRequest


class ResultsFile:
    """One file, open for more. A context manager.

    Args:
        path: made when it is not there; None = nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self.found: dict[str, Regraded] = {}
        """What it holds, by job."""

    @property
    def done(self) -> Mapping[str, Regraded]:
        """Jobs that need not be judged again."""
        return {job: one for job, one in self.found.items() if one.change not in (Change.ERROR, Change.SKIPPED)}

    def add(self, one: Regraded) -> None:
        """Adds one, written out before this returns."""
        self.found[one.job] = one
        if self._file is not None:
            self._file.write(orjson.dumps(one.as_map()) + b"\n")
            self._file.flush()

    def __enter__(self) -> Self:
        """Reads it, and opens it for more.

        Raises:
            InvalidRequest: it is something else, or cannot be written.
        """
        if self._path is None:
            return self
        try:
            with ExitStack() as stack:
                file = stack.enter_context(self._path.open("a+b"))
                file.seek(0)
                content = file.read()
                whole = content[: content.rfind(b"\n") + 1]
                for number, line in enumerate(whole.splitlines(), start=1):
                    one = _regraded(line, f"{self._path}:{number}")
                    self.found[one.job] = one
                if len(whole) < len(content):
                    file.truncate(len(whole))
                self._file = file
                stack.pop_all()
        except OSError as error:
            raise InvalidRequest(f"{self._path}: {error.strerror}", field="results") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()


def _regraded(line: bytes, place: str) -> Regraded:
    try:
        return codec.from_map(Regraded, orjson.loads(line))
    except (ValueError, TypeError) as error:
        raise InvalidRequest(f"{place} is no line of a regrade: {error}", field="results") from error
