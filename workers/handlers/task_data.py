"""Rows of tasks, from files (`row_files.py`) or as they are fed: in a task's own layout or in one that a public data set of its field has.

    {"header": {"name": ..., "licence": ..., "defaults": {...}}}      first line of our own files; `defaults` fill what a row leaves out
    {"id": ..., ...}

A row is what a trainer feeds as it stands: handlers read the same layouts from `prompt.data` (`problem_in`) as from a file (`load_rows`).

Invariants
    - A layout is told by its columns, the first of a task's list that fits; a file whose rows fit two is refused, as half of them would
      be read wrongly.
    - Each row has a stable id: its own, else one made of its content. Two rows of one file never share one.
    - Every fault names the file, the line (Parquet: the row) and the field; a file with one is not used in part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic, TypeVar

from pipeline.near_names import close_to, hint
from workers.handlers.row_files import BadTaskData, Row, rows_of

__all__ = [
    "BadTaskData",
    "Layout",
    "Row",
    "TaskRows",
    "json_of",
    "layout_of",
    "load_rows",
    "only_known",
    "problem_in",
    "rows_of",
    "text_of",
]

P = TypeVar("P")

_ID_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(Generic[P]):
    """How a data set writes its rows."""

    name: str
    """As people call the data set."""
    columns: frozenset[str]
    """What a row must have, and not as null, for this layout to be meant."""
    read: Callable[[Row, str], P]
    """The problem of a row; the text is its place, for errors. Raises `BadTaskData`."""
    id_column: str = "id"
    is_meant: Callable[[Row], bool] | None = None
    """What tells it from another data set with the same columns; None = the columns are enough."""
    of_folder: Callable[[Path], Iterator[tuple[str, dict[str, object]]]] | None = None
    """Rows of a folder, each with its place, for a data set that is no file; raises `BadTaskData`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRows:
    """What a file holds."""

    name: str
    layout: str
    header: Mapping[str, Any]  # what the file says about itself, as JSON
    """Empty when it says nothing."""
    rows: tuple[Row, ...]
    """Plain maps as a trainer feeds them, each with its `id`; every one was read once by the layout."""


def load_rows(path: Path | Traversable, layouts: Sequence[Layout[Any]]) -> TaskRows:
    """The rows of a file.

    Raises:
        BadTaskData: it cannot be read, is empty, mixes layouts, or has a row that is no problem.
    """
    header: Mapping[str, Any] = {}
    rows: list[Row] = []
    places: dict[str, str] = {}
    layout: Layout[Any] | None = None
    for place, found in _all_rows(path, layouts):
        if not rows and not header and set(found) == {"header"} and isinstance(found["header"], dict):
            header = found["header"]
            continue
        row = {**header.get("defaults", {}), **found}
        its = layout_of(row, layouts, place)
        if layout is None:
            layout = its
        elif its is not layout:
            raise BadTaskData(f"{place}: in the layout of {its.name}, the rows before it in that of {layout.name}")
        its.read(row, place)
        name = _id(row, its.id_column, places)
        if name in places:
            raise BadTaskData(f"{place}: the id {name!r} is already at {places[name]}", field=its.id_column)
        places[name] = place
        rows.append({**row, "id": name})
    if layout is None:
        raise BadTaskData(f"{path}: no row in it: expected a row a line, as JSON")
    name = str(header.get("name", Path(path.name).stem))
    return TaskRows(name=name, layout=layout.name, header=header, rows=tuple(rows))


def problem_in(row: Row, layouts: Sequence[Layout[P]], place: str = "prompt") -> P:
    """What a row asks, in whichever layout it is.

    Raises:
        BadTaskData: it fits none, or is no problem.
    """
    return layout_of(row, layouts, place).read(row, place)


def layout_of(row: Row, layouts: Sequence[Layout[P]], place: str) -> Layout[P]:
    """The layout that a row's columns tell.

    Raises:
        BadTaskData: none; lists what there is.
    """
    there = {name for name, value in row.items() if value is not None}
    for layout in layouts:
        if layout.columns <= there and (layout.is_meant is None or layout.is_meant(row)):
            return layout
    raise BadTaskData(f"{place}: columns {', '.join(sorted(there)) or 'none'} fit no layout; {_nearest(there, layouts)}")


def _nearest(there: set[str], layouts: Sequence[Layout[Any]]) -> str:
    """What a row that fits no layout may have been meant as, and which others there are."""
    nearest = max(layouts, key=lambda layout: len(layout.columns & there) / max(1, len(layout.columns)))
    lacks = sorted(nearest.columns - there)
    slips = {name: found for name in lacks if (found := close_to(name, there - nearest.columns))}
    needs = f"which lacks {', '.join(lacks)}" if nearest.columns & there else f"which needs {', '.join(sorted(nearest.columns))}"
    meant = "".join(f" (is {found!r} meant for {name!r}?)" for name, found in slips.items())
    others = ", ".join(layout.name for layout in layouts if layout is not nearest)
    rest = f"; the others are {others}: `rollstream task show TASK` has their columns" if others else ""
    return f"the nearest is that of {nearest.name}, {needs}{meant}{rest}"


def _all_rows(path: Path | Traversable, layouts: Sequence[Layout[Any]]) -> Iterator[tuple[str, dict[str, object]]]:
    readers = [layout.of_folder for layout in layouts if layout.of_folder is not None]
    return readers[0](path) if readers and isinstance(path, Path) and path.is_dir() else rows_of(path)


def text_of(row: Row, name: str, place: str, *, longest: int = 20_000) -> str:
    """A text that is there and not empty.

    Raises:
        BadTaskData
    """
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadTaskData(f"{place}: expected a text that is not empty, found {value!r:.80}", field=name)
    if len(value) > longest:
        raise BadTaskData(f"{place}: {len(value)} characters, at most {longest} are taken", field=name)
    return value


def json_of(row: Row, name: str, place: str) -> object:
    """A value that public data sets write as a text of JSON, or as what it says.

    Raises:
        BadTaskData: a text that is no JSON.
    """
    value = row.get(name)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as broken:
        raise BadTaskData(f"{place}: expected JSON, found {value!r:.80}: {broken}", field=name) from broken


def only_known(row: Row, known: Collection[str], place: str) -> None:
    """Refuses fields that nobody reads: in our own layout they are slips of the pen.

    Raises:
        BadTaskData
    """
    unknown = sorted(set(row) - set(known))
    if unknown:
        slips = [f"{name} ({hint(name, sorted(known))})" for name in unknown if close_to(name, known)]
        others = [name for name in unknown if not close_to(name, known)]
        some = f"; known are {', '.join(sorted(known))}" if others else ""
        raise BadTaskData(f"{place}: unknown fields {', '.join([*slips, *others])}{some}")


def _id(row: Row, column: str, taken: Collection[str]) -> str:
    for name in (column, "id"):
        value = row.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return str(value)[:_ID_CHARS]
    made = "row-" + blake2b(json.dumps(row, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()
    found, copies = made, 1
    while found in taken:  # public data sets hold a few rows twice
        copies += 1
        found = f"{made}-{copies}"
    return found
