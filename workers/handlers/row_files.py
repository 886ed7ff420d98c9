"""Files of rows: JSON lines, packed by gzip or not, and Parquet. What a file is, is told by its first bytes, and else by how it fails.

A person who names the wrong file is told what was expected of it and what to do, with its line.
"""

from __future__ import annotations

import datetime
import gzip
import json
import zlib
from collections.abc import Collection, Iterator, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO

from pipeline.errors import InvalidRequest
from pipeline.prompt_images import IMAGES, with_inline_images
from pipeline.prompts import plain_map

Row = Mapping[str, object]

EXPECTED = "expected a row a line, as JSON (or Parquet)"
GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
NOT_READ = {b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
"""First bytes of what has to be unpacked first."""
BOM = b"\xef\xbb\xbf"
_BATCH_ROWS = 256


class BadTaskData(InvalidRequest):
    """A file or a row that cannot be used; the message names the place and what is wrong with it."""


def rows_of(path: Path | Traversable, columns: Collection[str] = ()) -> Iterator[tuple[str, dict[str, object]]]:
    """Each row with its place, in order; of Parquet those columns only, when any are named and there.

    Raises:
        BadTaskData: it cannot be read, or has a line that is no object.
    """
    try:
        with path.open("rb") as file:
            begins = file.read(6)
            file.seek(0)
            if isinstance(path, Path) and (path.suffix == ".parquet" or begins.startswith(PARQUET)):
                yield from _parquet_rows(path, columns)
                return
            packed = next((name for magic, name in NOT_READ.items() if begins.startswith(magic)), "")
            if packed:
                raise BadTaskData(f"{path}: packed by {packed}: unpack it first; {EXPECTED}")
            if begins.startswith(GZIP):
                with gzip.open(file) as unpacked:
                    yield from _json_rows(path, unpacked)
            else:
                yield from _json_rows(path, file)
    except (OSError, EOFError, zlib.error) as broken:
        raise BadTaskData(f"{path}: {getattr(broken, 'strerror', None) or broken}; {EXPECTED}") from broken


def _json_rows(path: Path | Traversable, file: IO[bytes] | gzip.GzipFile) -> Iterator[tuple[str, dict[str, object]]]:
    for number, line in enumerate(file, start=1):
        place = f"{path}:{number}"
        if number == 1:
            line = line.removeprefix(BOM)
        if not line.strip():
            continue
        try:
            found = json.loads(line.decode().rstrip())  # else a line that breaks off does so in the next one, at column 1
        except UnicodeDecodeError as broken:
            raise BadTaskData(f"{place}: no UTF-8: {broken.reason} at byte {broken.start + 1}; write the file in UTF-8") from broken
        except json.JSONDecodeError as broken:
            why = _no_lines(line) if number == 1 else ""
            raise BadTaskData(f"{place}: no JSON: {broken.msg} at column {broken.colno}{why}") from broken
        except (ValueError, RecursionError) as broken:
            raise BadTaskData(f"{place}: no JSON: {broken}") from broken
        if not isinstance(found, dict):
            why = "; jq -c '.[]' makes lines of a list" if isinstance(found, list) else ""
            raise BadTaskData(f"{place}: expected an object, found {type(found).__name__}{why}")
        yield place, _with_images(found, path, place)


def _with_images(row: Mapping[str, object], path: Path | Traversable, place: str) -> dict[str, object]:
    """The row with its images in it; their paths lie below its file's folder. Our own files, which may be in an archive, have none."""
    try:
        return dict(with_inline_images(row, path.parent if isinstance(path, Path) else None))
    except ValueError as broken:
        raise BadTaskData(f"{place}: {broken}", field=IMAGES) from broken


def _no_lines(line: bytes) -> str:
    """What a file may be whose first line is no JSON."""
    if line.strip() in (b"[", b"{"):
        return "; this is JSON over several lines: jq -c makes one line of each row (jq -c '.[]' of a list)"
    return f"; {EXPECTED}"


def _parquet_rows(path: Path, columns: Collection[str]) -> Iterator[tuple[str, dict[str, object]]]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as missing:
        raise BadTaskData(f"{path}: Parquet is read by pyarrow: pip install 'rollstream[parquet]'") from missing
    number = 0
    try:
        with ParquetFile(path) as file:
            wanted = [name for name in file.schema_arrow.names if not columns or name in columns]
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    place = f"{path}, row {number}"
                    try:
                        yield place, plain_map(_with_images({name: _plain(value) for name, value in row.items()}, path, place))
                    except ValueError as broken:
                        raise BadTaskData(f"{place}: {broken}") from broken
    except ArrowException as broken:
        raise BadTaskData(f"{path} cannot be read as Parquet: {broken}") from broken


def _plain(value: object) -> object:
    """Dates as text: they are in rows to be read by people."""
    return value.isoformat() if isinstance(value, datetime.date | datetime.datetime | datetime.time) else value
