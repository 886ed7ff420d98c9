"""The images that a task file names: JSON lines, or Parquet (with the extra `parquet`).

A row's image is its first field of `FIELDS` that is a text, or the field that the caller names; a dotted one is looked up in maps of maps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import InvalidRequest

FIELDS = ("image", "docker_image", "image_name")
"""As our own tasks, SWE-Gym and R2E-Gym, and SWE-smith call it."""
_BATCH_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskImages:
    """What a task file asks for."""

    names: tuple[str, ...]
    """Each once, in the order they are met."""
    rows: int
    without: int
    """Rows that name none."""


def images_of_tasks(path: Path, field: str = "") -> TaskImages:
    """Reads a task file.

    Raises:
        InvalidRequest: it is not there, is no file of tasks, or names no image at all.
    """
    names: dict[str, None] = {}
    rows = without = 0
    for row in _rows(path, field):
        rows += 1
        name = _image_of(row, field)
        if name:
            names[name] = None
        else:
            without += 1
    if not names:
        looked = field or " or ".join(FIELDS)
        raise InvalidRequest(f"{path}: none of its {rows:,} rows has a text in {looked}: name the field with --field", field="--from")
    return TaskImages(names=tuple(names), rows=rows, without=without)


def _image_of(row: Mapping[str, object], field: str) -> str:
    for name in (field,) if field else FIELDS:
        value: object = row.get(name)
        if value is None and "." in name:
            value = row
            for part in name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, str) and value:
            return value
    return ""


def _rows(path: Path, field: str) -> Iterator[Mapping[str, object]]:
    try:
        yield from _parquet_rows(path, field) if path.suffix == ".parquet" else _json_rows(path)
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror or error}", field="--from") from error


def _json_rows(path: Path) -> Iterator[Mapping[str, object]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidRequest(f"{path}, line {number}: no JSON: {error}", field="--from") from error
            if not isinstance(row, dict):
                raise InvalidRequest(f"{path}, line {number}: expected a map, got {type(row).__name__}", field="--from")
            yield row


def _parquet_rows(path: Path, field: str) -> Iterator[Mapping[str, object]]:
    """Reads the columns that may name an image, and none of the others: a data set's problem texts are large."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            wanted = {field.split(".")[0]} if field else set(FIELDS)
            columns = [name for name in file.schema_arrow.names if name in wanted or name == field]
            if not columns:
                raise InvalidRequest(f"{path} has none of the columns {', '.join(sorted(wanted))}: name one with --field", field="--from")
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                yield from batch.to_pylist()
    except ArrowException as error:
        raise InvalidRequest(f"{path} cannot be read as Parquet: {error}", field="--from") from error
