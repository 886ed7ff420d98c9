"""Exports what a run's results stream has, behind what was exported before.

    FOLDER/export.json           the run, the format, whether cancelled jobs are in it: what a later export must not change
           trajectories/part-*   groups/part-*   steps/part-*

Invariants:
  1. Each record that was there is in one part exactly, in the order of the stream, however many exporters run and whichever of them die
     (`parts.py`).
  2. In memory are one page of records, eight jobs' bodies and one row group.
  3. A record that cannot be read, or whose bodies are gone, keeps no other from being exported; it is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import orjson

from ops.export.datasets import DATASETS, Dataset, Row
from ops.export.formats import PartWriter, open_part, refuse_unwritable
from ops.export.parts import UNFINISHED, ExportError, Parts
from ops.export.records import Reading
from pipeline.failpoints import failpoint
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask

SCHEMA = 1
ROW_GROUP_BYTES = 32 * 1024**2
ROW_GROUP_ROWS = 500
PART_BYTES = 256 * 1024**2
PART_ROWS = 10_000
Progress = Callable[[str, int], None]
"""Name of a data set, and rows written so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportWishes:
    """What an export is to be; the same for all parts of a folder."""

    format: Literal["parquet", "jsonl"] = "parquet"
    cancelled: bool = False
    """Also cancelled jobs."""
    part_rows: int = PART_ROWS
    """Most rows of a part, about: a part ends between two batches of records."""
    row_group_rows: int = ROW_GROUP_ROWS
    """Rows that are written at once, about."""


@dataclass(slots=True, kw_only=True)
class Exported:
    """What one export wrote."""

    folder: Path
    rows: dict[str, int] = field(default_factory=dict)
    """By data set."""
    parts: int = 0
    without_trajectory: int = 0
    """Jobs that had one, and whose body was gone."""
    left_out: int = 0
    """Cancelled jobs that were not wished for."""
    unreadable: list[str] = field(default_factory=list)
    """Records and bodies that could not be read, and why; the first few."""

    def as_map(self) -> dict[str, object]:
        """For JSON."""
        return {
            "folder": str(self.folder),
            "rows": dict(self.rows),
            "parts": self.parts,
            "without_trajectory": self.without_trajectory,
            "left_out_cancelled": self.left_out,
            "unreadable": self.unreadable,
        }


async def export_run(
    client: AsyncClient,
    keys: Keys,
    run: str,
    folder: Path,
    wishes: ExportWishes,
    *,
    progress: Progress = lambda name, rows: None,
) -> Exported:
    """Writes what is new.

    Raises:
        ExportError: the folder holds another export, or cannot hold one; Redis knows no such run; the package for Parquet is missing.
        BrokerError
    """
    refuse_unwritable(wishes.format)
    if not await ask(client, "EXISTS", keys.run(run), keys.results(run)):
        raise ExportError(f"no run {run!r}: it never was, or its time to live ran out; rollstream run list names those that are")
    await asyncio.to_thread(_agree, folder, run, wishes)
    done = Exported(folder=folder)
    for dataset in DATASETS.values():
        await _export_dataset(client, keys, run, dataset, wishes, done, progress)
    return done


def _agree(folder: Path, run: str, wishes: ExportWishes) -> None:
    """Writes down what the export is, or compares."""
    said = {"schema": SCHEMA, "run": run, "format": wishes.format, "cancelled": wishes.cancelled}
    path, draft = folder / "export.json", folder / f"{UNFINISHED}{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            draft.write_bytes(orjson.dumps(said))
            with contextlib.suppress(FileExistsError):  # another exporter came first, and is compared with
                os.link(draft, path)
    except OSError as error:
        raise ExportError(f"{folder}: {error.strerror}: an export needs a folder that it may write to, with hard links") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    try:
        there = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ExportError(f"{path} cannot be read ({error}): remove it, or export into another folder") from error
    for name, value in said.items():
        if not isinstance(there, dict) or there.get(name) != value:
            had = there.get(name) if isinstance(there, dict) else there
            raise ExportError(f"{folder} holds an export with {name} {had!r}, and this is one with {value!r}: export into another folder")


async def _export_dataset(
    client: AsyncClient, keys: Keys, run: str, dataset: Dataset, wishes: ExportWishes, done: Exported, progress: Progress
) -> None:
    parts = Parts(folder=done.folder / dataset.name, extension=wishes.format)
    done.rows[dataset.name] = 0
    while True:
        after = await asyncio.to_thread(parts.end)
        reading = Reading(client, keys, run, dataset.kind, cancelled=wishes.cancelled)
        part = _Part(parts, dataset, wishes, after)
        try:
            is_whole = await part.fill(reading)
            took_place = await part.publish()
        finally:
            await part.close()
        if part.rows and not took_place:
            continue  # another exporter wrote these: go on behind its part
        done.rows[dataset.name] += part.rows
        done.parts += bool(part.rows)
        done.without_trajectory += part.without_trajectory
        done.left_out += reading.left_out
        done.unreadable = list(dict.fromkeys([*done.unreadable, *reading.damaged, *part.unreadable]))[:20]
        progress(dataset.name, done.rows[dataset.name])
        if is_whole:
            return


class _Part:
    """One part on its way."""

    def __init__(self, parts: Parts, dataset: Dataset, wishes: ExportWishes, after: str) -> None:
        self._parts = parts
        self._dataset = dataset
        self._wishes = wishes
        self._after = after
        self._draft = parts.draft()
        self._writer: PartWriter | None = None
        self._pending: list[Row] = []
        self._pending_bytes = 0
        self._bytes = 0
        self._last_entry = ""
        self.rows = 0
        self.without_trajectory = 0
        self.unreadable: list[str] = []

    async def fill(self, reading: Reading) -> bool:
        """Takes records until the part is full; True = there are no more."""
        async for batch in reading.behind(self._after):
            for found in batch:
                row = self._dataset.row(found)
                self._pending.append(row)
                self._pending_bytes += found.n_bytes + 1024
                self._last_entry = row["entry"]
                self.rows += 1
                if row.get("run_attempt") and not row["has_trajectory"]:
                    self.without_trajectory += 1
                if found.unreadable and len(self.unreadable) < 20:
                    self.unreadable.append(f"{row['job']}: {found.unreadable[0]}")
            if self._pending_bytes >= ROW_GROUP_BYTES or len(self._pending) >= self._wishes.row_group_rows:
                await self._flush()
            if self._bytes >= PART_BYTES or self.rows >= self._wishes.part_rows:
                return False
        return True

    async def publish(self) -> bool:
        """Gives the part its name; False = there was nothing, or somebody else was first."""
        if not self.rows:
            return False
        await self._flush()
        assert self._writer is not None
        await asyncio.to_thread(self._writer.close, self._last_entry)
        self._writer = None
        failpoint("export_part_written")
        is_ours = await asyncio.to_thread(self._parts.publish, self._draft, self._after)
        failpoint("export_part_named")
        return is_ours

    async def _flush(self) -> None:
        if not self._pending:
            return
        rows, self._pending = self._pending, []
        if self._writer is None:
            self._writer = await asyncio.to_thread(open_part, self._wishes.format, self._draft, self._dataset)
        await asyncio.to_thread(self._writer.write, rows)
        self._bytes += self._pending_bytes
        self._pending_bytes = 0

    async def close(self) -> None:
        """Leaves no draft behind, however it ended."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        self._draft.unlink(missing_ok=True)


__all__ = ["ExportWishes", "Exported", "export_run"]
