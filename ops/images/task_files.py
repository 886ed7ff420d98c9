"""The images that a task file names: JSON lines, or Parquet (with the extra `parquet`).

A row's image is its first field of `FIELDS` that is a text, or the field that the caller names; a dotted one is looked up in maps of maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import InvalidRequest
from workers.handlers.task_data import rows_of

FIELDS = ("image", "docker_image", "image_name")
"""As our own tasks, SWE-Gym and R2E-Gym, and SWE-smith call it."""


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
    columns = {field, field.split(".")[0]} if field else FIELDS  # a data set's problem texts are large: none of them is read
    for _, row in rows_of(path, columns):
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
