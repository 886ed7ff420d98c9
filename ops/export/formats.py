"""How rows become a file: Parquet, a row group at a time, or JSON lines. Both block: they run in a thread."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson

from ops.export.columns import Column
from ops.export.datasets import Dataset, Row
from ops.export.parts import LAST_ENTRY, ExportError

ARRAYS = {"list of u32": np.uint32, "list of u8": np.uint8, "list of f32": np.float32}


class PartWriter(Protocol):
    """One part that is being written."""

    def write(self, rows: Sequence[Row]) -> None:
        """Appends rows."""

    def close(self, last_entry: str) -> None:
        """Finishes the file and brings it to the disk."""

    def abandon(self) -> None:
        """Lets go of the file; it is not read any more."""


class JsonLines:
    """A row a line; numpy arrays as lists, NaN as null, times as text."""

    def __init__(self, path: Path, dataset: Dataset) -> None:
        self._file = path.open("xb")

    def write(self, rows: Sequence[Row]) -> None:
        options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z
        for row in rows:
            self._file.write(orjson.dumps(row, default=_plain, option=options))

    def close(self, last_entry: str) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        self._file.close()


class Parquet:
    """Row groups of what is written at once; zstd. Where the part ends stands in its metadata."""

    def __init__(self, path: Path, dataset: Dataset) -> None:
        from pyarrow import parquet

        self._dataset = dataset
        self._schema = arrow_schema(dataset)
        self._file = path.open("xb")
        self._writer = parquet.ParquetWriter(self._file, self._schema, compression="zstd", use_dictionary=_low_cardinality(dataset))

    def write(self, rows: Sequence[Row]) -> None:
        self._writer.write_batch(record_batch(self._dataset, self._schema, rows))

    def close(self, last_entry: str) -> None:
        self._writer.add_key_value_metadata({LAST_ENTRY: last_entry.encode("ascii"), b"rollstream.dataset": self._dataset.name.encode()})
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        self._writer.is_open = False  # its end is not written: nobody reads the file
        self._file.close()


def refuse_unwritable(format_: str) -> None:
    """Asked before anything is written: a folder that was given a format keeps it.

    Raises:
        ExportError: the package for the format is not installed.
    """
    if format_ == "jsonl":
        return
    try:
        import pyarrow.parquet  # noqa: F401 -- whether it is there
    except ModuleNotFoundError:
        raise ExportError(
            "Parquet needs the package pyarrow: pip install 'rollstream[parquet]', or export as JSON lines (--format jsonl)"
        ) from None


def open_part(format_: str, path: Path, dataset: Dataset) -> PartWriter:
    """A new part of a format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return JsonLines(path, dataset) if format_ == "jsonl" else Parquet(path, dataset)


# ---- arrow


def arrow_schema(dataset: Dataset) -> Any:
    """The schema of a data set; a sentence a column in its metadata."""
    import pyarrow

    return pyarrow.schema([_arrow_field(column) for column in dataset.columns])


def _arrow_field(column: Column) -> Any:
    import pyarrow

    return pyarrow.field(column.name, _arrow_type(column.type, column.inner), metadata={"says": column.says} if column.says else None)


def _arrow_type(words: str, inner: Sequence[Column]) -> Any:
    import pyarrow

    if words.startswith("list of "):
        return pyarrow.list_(_arrow_type(words.removeprefix("list of "), inner))
    if words.startswith("map of "):
        return pyarrow.map_(pyarrow.string(), _arrow_type(words.removeprefix("map of "), inner))
    if words == "record":
        return pyarrow.struct([pyarrow.field(column.name, _arrow_type(column.type, column.inner)) for column in inner])
    return {
        "text": pyarrow.string(),
        "json": pyarrow.string(),
        "whole": pyarrow.int64(),
        "number": pyarrow.float64(),
        "yes/no": pyarrow.bool_(),
        "time": pyarrow.timestamp("ms", "UTC"),
        "u8": pyarrow.uint8(),
        "u32": pyarrow.uint32(),
        "f32": pyarrow.float32(),
    }[words]


def record_batch(dataset: Dataset, schema: Any, rows: Sequence[Row]) -> Any:
    """Rows as one batch. Token arrays are joined by numpy: a value at a time would take a hundred times as long."""
    import pyarrow

    arrays = [_array(column, schema.field(column.name).type, [row[column.name] for row in rows]) for column in dataset.columns]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _array(column: Column, type_: Any, values: Sequence[Any]) -> Any:
    import pyarrow

    if column.type in ARRAYS:
        joined = np.concatenate(values) if values else np.zeros(0, ARRAYS[column.type])
        return pyarrow.ListArray.from_arrays(_offsets(values), pyarrow.array(joined, type_.value_type), type=type_)
    if column.type == "list of record":
        flat = [one for value in values for one in value]
        parts = [_array(inner, type_.value_type.field(inner.name).type, [one[inner.name] for one in flat]) for inner in column.inner]
        structs = pyarrow.StructArray.from_arrays(parts, fields=list(type_.value_type))
        return pyarrow.ListArray.from_arrays(_offsets(values), structs, type=type_)
    if column.type == "json":
        return pyarrow.array([None if value is None else _json(value) for value in values], type_)
    return pyarrow.array(values, type_)


def _offsets(values: Sequence[Any]) -> Any:
    import pyarrow

    return pyarrow.array([0, *accumulate(len(value) for value in values)], pyarrow.int32())


def _low_cardinality(dataset: Dataset) -> list[str]:
    """Columns whose values repeat; token arrays do not gain by a dictionary."""
    return [column.name for column in dataset.columns if column.type == "text" and column.name not in ("entry", "job", "answer")]


def _json(value: object) -> str:
    return orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS).decode()


def _plain(value: object) -> object:
    """What JSON does not know: bytes, numbers of numpy, whole numbers that are too large, text that is no UTF-8."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value).encode("utf-8", "backslashreplace").decode()


__all__ = ["PartWriter", "arrow_schema", "open_part", "record_batch"]
