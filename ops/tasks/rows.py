"""The rows that a command works on: those of a file, else the task's own samples, each as the job that it would be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pipeline.errors import InvalidRequest
from pipeline.messages import JobSpec, JobTemplate, Prompt
from pipeline.prompts import prompt_data
from workers.handlers.base import TaskHandler
from workers.handlers.task_data import Layout, Row, TaskRows, load_rows

RUN = "foreground"
"""Jobs in the foreground have ids as if they were of this run; no Redis knows it."""
ANY_ROW: Layout[Any] = Layout(name="any", columns=frozenset(), read=lambda row, place: row)
"""Of a task that names no layouts: it reads `prompt.data` itself."""


class NoRows(InvalidRequest):
    """A task without samples was asked for one, or a row is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows, and where they are from."""

    sources: tuple[str, ...]
    layouts: tuple[str, ...]
    """One a source."""
    rows: tuple[Row, ...]

    def named(self, name: str) -> Row:
        """The row with that id, or, of a number that is no id, the row at that place.

        Raises:
            NoRows
        """
        found = next((row for row in self.rows if row["id"] == name), None)
        if found is None and name.isdecimal() and int(name) < len(self.rows):
            found = self.rows[int(name)]
        if found is None:
            some = ", ".join(str(row["id"]) for row in self.rows[:5])
            raise NoRows(
                f"no row {name!r} among {len(self.rows)}; they are called {some}{', ...' if len(self.rows) > 5 else ''}", field="row"
            )
        return found


def read_rows(handler: TaskHandler, data: Path | None, *, limit: int | None = None) -> Rows:
    """The rows of a file, else those of the task's samples.

    Args:
        limit: no more than these; the file is checked whole all the same.

    Raises:
        BadTaskData: a file has a row that is no problem.
        NoRows: none was given, and the task ships none.
    """
    sources: Sequence[Path | Traversable] = (data,) if data is not None else handler.samples
    if not sources:
        raise NoRows(f"the task {handler.name} ships no problems: name a file with --data", field="data")
    found = [(source, load_rows(source, handler.layouts or (ANY_ROW,))) for source in sources]
    rows = list(_unique(each for _, each in found))
    return Rows(
        sources=tuple(str(source) if data is not None else source.name for source, _ in found),
        layouts=tuple(each.layout for _, each in found),
        rows=tuple(rows[:limit]),
    )


def spec_of(template: JobTemplate, row: Row, number: int = 0, *, attempt: int = 1) -> JobSpec:
    """The job that a row would be.

    Args:
        number: tells jobs of one command apart, in the names of their sandboxes too.

    Raises:
        InvalidRequest: the row holds what cannot travel.
    """
    data = prompt_data(row, field=f"row {row.get('id', number)}")
    return JobSpec(
        job=f"{RUN}.{number}",
        run=RUN,
        group="",
        member=0,
        draw=0,
        attempt=attempt,
        template=template,
        prompt=Prompt(id=str(row.get("id", number)), data=data),
    )


def _unique(files: Iterable[TaskRows]) -> Iterable[Row]:
    """Rows of several files: an id that an earlier file has, too, is given to the first of them alone."""
    seen: set[object] = set()
    for file in files:
        for row in file.rows:
            if row["id"] not in seen:
                seen.add(row["id"])
                yield row
