"""Exports: each record once and whole, whoever dies or races; bit for bit; and what cannot be had is said and stops nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ops.export import ExportError, ExportWishes, export_run
from ops.export.parts import UNFINISHED, Parts, name_after
from pipeline.messages import VersionSpan
from pipeline.redis_client import ask
from pipeline.settings import QueueSettings
from pipeline.testing import a_segment, a_trajectory
from tests.e2e.conftest import ROOT

from .conftest import Results

pytestmark = pytest.mark.one_server
pyarrow = pytest.importorskip("pyarrow")
JSONL, PARQUET = ExportWishes(format="jsonl"), ExportWishes()


def rows_of(folder: Path, dataset: str = "trajectories") -> list[dict[str, Any]]:
    """All rows of a data set, read as a stranger would."""
    from pyarrow import parquet

    rows: list[dict[str, Any]] = []
    for path in sorted((folder / dataset).glob("part-*")):
        rows += (
            [json.loads(line) for line in path.read_bytes().splitlines()]
            if path.suffix == ".jsonl"
            else parquet.read_table(path).to_pylist()
        )
    return rows


def drafts(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(f"{UNFINISHED}*")]


async def test_token_arrays_come_back_from_parquet_bit_for_bit(results: Results, tmp_path: Path) -> None:
    made = [
        a_trajectory(segments=(a_segment(40, 7, seed=number), a_segment(9, 2, seed=100 + number, began="thinking_dropped")))
        for number in range(3)
    ]
    await results.add(3, make=lambda number: made[number])

    done = await export_run(results.client, results.keys, results.name, tmp_path / "out", PARQUET)

    rows = rows_of(tmp_path / "out")
    assert (done.rows["trajectories"], done.without_trajectory, done.unreadable) == (3, 0, [])
    assert [row["job"] for row in rows] == results.ended
    for row, trajectory in zip(rows, made, strict=True):
        for found, segment in zip(row["segments"], trajectory.segments, strict=True):
            assert np.array_equal(np.array(found["token_ids"], np.uint32), segment.token_ids)
            assert np.array_equal(np.array(found["sampled_mask"], np.uint8), segment.sampled_mask)
            assert np.array_equal(np.array(found["loss_mask"], np.uint8), segment.loss_mask)
            assert np.array_equal(np.array(found["logprobs"], np.float32), segment.logprobs, equal_nan=True)
            assert [VersionSpan(**span) for span in found["versions"]] == list(segment.versions)
            assert found["began"] == segment.began
        assert [call["end"] for call in row["calls"]] == [turn.end for turn in trajectory.turns]
        assert (row["outcome"], row["grader"], row["answer"]) == ("ok", "math 1", trajectory.answer)
        assert json.loads(row["prompt"])["question"] == "What is 2 + 2?"
    assert [json.loads(row["grade_details"])["n"] for row in rows] == [0, 1, 2]
    assert [dict(row["components"]) for row in rows] == [{"score": reward} for reward in (0.0, 1.0, 0.0)]


async def test_json_lines_have_the_same_rows(results: Results, tmp_path: Path) -> None:
    await results.add(4)

    await export_run(results.client, results.keys, results.name, tmp_path / "lines", JSONL)
    await export_run(results.client, results.keys, results.name, tmp_path / "table", PARQUET)

    lines, table = rows_of(tmp_path / "lines"), rows_of(tmp_path / "table")
    assert [set(row) for row in lines] == [set(row) for row in table]
    for line, row in zip(lines, table, strict=True):
        assert {name: line[name] for name in ("entry", "job", "reward", "turns", "messages")} == {
            name: row[name] for name in ("entry", "job", "reward", "turns", "messages")
        }
        (of_line,), (of_row,) = line["segments"], row["segments"]
        assert of_line["token_ids"] == of_row["token_ids"]
        assert [value is None for value in of_line["logprobs"]] == [bool(np.isnan(value)) for value in of_row["logprobs"]]


async def test_the_next_export_writes_what_is_new_and_another_one_nothing(results: Results, tmp_path: Path) -> None:
    await results.add(3)
    first = await export_run(results.client, results.keys, results.name, tmp_path, PARQUET)
    await results.ack_all()
    await results.add(2)

    second = await export_run(results.client, results.keys, results.name, tmp_path, PARQUET)
    third = await export_run(results.client, results.keys, results.name, tmp_path, PARQUET)

    assert [one.rows["trajectories"] for one in (first, second, third)] == [3, 2, 0]
    assert [row["job"] for row in rows_of(tmp_path)] == results.ended
    assert third.parts == 0


async def test_cancelled_jobs_are_left_out_unless_they_are_wished_for_and_broken_ones_are_there(results: Results, tmp_path: Path) -> None:
    (ended,) = await results.add(1)
    cancelled, broken = await results.add_cancelled("unwanted"), await results.add_broken("broken")

    without = await export_run(results.client, results.keys, results.name, tmp_path / "a", PARQUET)
    with_them = await export_run(results.client, results.keys, results.name, tmp_path / "b", ExportWishes(cancelled=True))

    assert (without.left_out, with_them.left_out) == (1, 0)
    assert [row["job"] for row in rows_of(tmp_path / "a")] == [ended, broken]
    assert {row["job"]: row["outcome"] for row in rows_of(tmp_path / "b")} == {ended: "ok", cancelled: "cancelled", broken: "infra_failure"}
    assert rows_of(tmp_path / "a")[1]["reward"] is None
    with pytest.raises(ExportError, match="holds an export with cancelled False"):
        await export_run(results.client, results.keys, results.name, tmp_path / "a", ExportWishes(cancelled=True))


async def test_a_body_that_is_gone_or_damaged_and_an_entry_that_is_none_stop_nothing(results: Results, tmp_path: Path) -> None:
    gone, damaged, whole = await results.add(3)
    attempt = (await ask(results.client, "HGET", results.keys.job(gone), "b.run")).decode()
    await ask(results.client, "DEL", results.keys.body(gone, attempt, "run"))
    await ask(results.client, "SET", results.keys.body(damaged, attempt, "run"), b"\x00not msgpack", "EX", 60)
    await results.add_record("job", nonsense="x")

    done = await export_run(results.client, results.keys, results.name, tmp_path, PARQUET)

    rows = {row["job"]: row for row in rows_of(tmp_path)}
    assert {job: row["has_trajectory"] for job, row in rows.items()} == {gone: False, damaged: False, whole: True}
    assert rows[damaged]["unreadable"][0].startswith("trajectory: ")
    assert done.without_trajectory == 2
    assert len(done.unreadable) == 2


async def test_groups_and_steps_have_tables_of_their_own(results: Results, tmp_path: Path) -> None:
    await results.add_record(
        "group", grp="run1.e0-1.0", prompt="e0-1", draw=0, verdict="informative", why="", step=3, want=2, valid=2, mean=0.5, spread=1.0,
        rews="0.0,1.0", sampled=20, total=40, v0="1.0", v1="1.1", inc=1, fates="kept:20", age_ms=1500, age_v=1, comps="",
    )  # fmt: skip
    await results.add_record(
        "step", k=3, groups="run1.e0-1.0", target=1, n=2, short=0, cx="", filtered=1, dropped=0, dead=0, cancelled=0, surplus=0, stale=0,
        redundant=0, tokens_kept=20, tokens_filtered=10, took_ms=2000, watched_ms=1000, inc=1, monitors='{"length_warn": 0.0}',
    )  # fmt: skip

    done = await export_run(results.client, results.keys, results.name, tmp_path, PARQUET)

    assert done.rows == {"trajectories": 0, "groups": 1, "steps": 1}
    (group,), (step,) = rows_of(tmp_path, "groups"), rows_of(tmp_path, "steps")
    assert (group["verdict"], group["step"], group["values"], dict(group["tokens"])) == ("informative", 3, [0.0, 1.0], {"kept": 20})
    assert (step["step"], step["groups"], dict(step["tokens"])["filtered"], step["took_s"]) == (3, ["run1.e0-1.0"], 10, 2.0)
    assert dict(step["monitors"]) == {"length_warn": 0.0}


# ---- several, and dead ones


async def test_two_exporters_at_once_write_each_record_once(results: Results, tmp_path: Path) -> None:
    await results.add(40)

    done = await asyncio.gather(*(export_run(results.client, results.keys, results.name, tmp_path, JSONL) for _ in range(3)))

    assert sum(one.rows["trajectories"] for one in done) == 40
    assert [row["job"] for row in rows_of(tmp_path)] == results.ended
    assert drafts(tmp_path) == []


async def test_who_finds_its_place_taken_throws_its_part_away(tmp_path: Path) -> None:
    parts = Parts(tmp_path, "jsonl")
    for text in ('{"entry": "5-0"}\n', '{"entry": "9-1"}\n'):
        draft = parts.draft()
        draft.write_text(text)
        await asyncio.to_thread(parts.publish, draft, "0-0")

    assert [path.name for path in parts.paths()] == [f"{name_after('0-0')}.jsonl"]
    assert parts.end() == "5-0"
    assert drafts(tmp_path) == []


EXPORT_POINTS = ("export_part_written", "export_part_named")


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", EXPORT_POINTS)
async def test_an_exporter_that_was_killed_is_followed_by_another_and_nothing_is_missing_or_doubled(
    results: Results, settings: QueueSettings, tmp_path: Path, failpoint: str
) -> None:
    await results.add(5)
    command = [sys.executable, "-m", "ops.cli", "run", "export", results.name, "--to", str(tmp_path), "--format", "jsonl"]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "ROLLSTREAM_REDIS_URL": settings.redis_url,
        "ROLLSTREAM_NAMESPACE": settings.namespace,
        "ROLLSTREAM_FAILPOINT": failpoint,
    }

    killed = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, env=environment, capture_output=True, timeout=600)
    await export_run(results.client, results.keys, results.name, tmp_path, JSONL)

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [row["job"] for row in rows_of(tmp_path)] == results.ended


async def test_a_full_part_is_followed_by_another(results: Results, tmp_path: Path) -> None:
    await results.add(30)

    done = await export_run(results.client, results.keys, results.name, tmp_path, ExportWishes(part_rows=8, row_group_rows=4))

    assert done.parts == 4
    assert [row["job"] for row in rows_of(tmp_path)] == results.ended


# ---- wrong use


async def test_wrong_use_is_told_with_what_to_do(results: Results, tmp_path: Path) -> None:
    await results.add(1)
    await export_run(results.client, results.keys, results.name, tmp_path / "out", JSONL)

    with pytest.raises(ExportError, match="no run 'other'"):
        await export_run(results.client, results.keys, "other", tmp_path / "new", JSONL)
    with pytest.raises(ExportError, match="holds an export with format 'jsonl'"):
        await export_run(results.client, results.keys, results.name, tmp_path / "out", PARQUET)
    (part,) = Parts(tmp_path / "out/trajectories", "jsonl").paths()
    part.write_bytes(b"{broken\n")
    with pytest.raises(ExportError, match=r"cannot be read .* remove it"):
        await export_run(results.client, results.keys, results.name, tmp_path / "out", JSONL)
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="needs a folder that it may write to"):
        await export_run(results.client, results.keys, results.name, tmp_path / "file", JSONL)


async def test_without_pyarrow_parquet_is_refused_before_the_folder_has_a_format(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence names JSON lines as the way on: a folder that had been given `parquet` refused them."""
    await results.add(1)
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # what an environment without the extra `parquet` is to an import

    with pytest.raises(ExportError, match="pyarrow"):
        await export_run(results.client, results.keys, results.name, tmp_path / "out", PARQUET)
    done = await export_run(results.client, results.keys, results.name, tmp_path / "out", JSONL)

    assert done.rows["trajectories"] == 1
