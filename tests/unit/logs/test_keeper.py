"""Warnings outlive the node's disk; trouble is told once; what is printed beside the log is bounded (ADR 33, 3 and 4)."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from structlog.testing import capture_logs

from ops.logs.keeper import MOST_OUTPUT_BYTES, LogKeeper
from pipeline.log_file import SharedLogFile, log_files
from pipeline.logs import NodeLog


@pytest.fixture
def node_log(tmp_path: Path) -> NodeLog:
    return NodeLog(path=tmp_path / "scratch/logs/n1/node.log", node="n1", max_bytes=2000, files=4)


class Writer:
    """A process of the node that logs."""

    def __init__(self, log: NodeLog) -> None:
        self._file: SharedLogFile = log.open()
        self._number = 0

    def says(self, level: str) -> int:
        """Answers which line it is."""
        self._number += 1
        line = {"timestamp": f"2026-11-30T00:00:00.{self._number:06d}Z", "level": level, "node": "n1", "event": "e", "number": self._number}
        self._file.write(orjson.dumps(line) + b"\n")
        return self._number


def numbers(path: Path) -> list[int]:
    return [orjson.loads(line)["number"] for file in log_files(path) for line in file.read_bytes().splitlines()]


def test_warnings_and_errors_are_copied_once_through_rotations_and_by_a_successor(node_log: NodeLog, tmp_path: Path) -> None:
    """The first launcher is killed: it does nothing at its end. Its workers log on, and the next launcher goes on where it was."""
    warnings, writer, expected = tmp_path / "state/logs/n1/warnings.log", Writer(node_log), list[int]()
    first = LogKeeper(node_log, warnings)
    for _ in range(20):
        writer.says("info")
        expected += [writer.says("warning"), writer.says("error")]
        first.look()
    assert len(log_files(node_log.path)) > 2
    for _ in range(2):
        expected.append(writer.says("critical"))

    LogKeeper(node_log, warnings).look()

    assert numbers(warnings) == expected


def test_a_state_folder_that_cannot_be_written_is_told_once_and_made_up_for(node_log: NodeLog, tmp_path: Path) -> None:
    warnings, writer = tmp_path / "state/logs/n1/warnings.log", Writer(node_log)
    keeper = LogKeeper(node_log, warnings)
    (tmp_path / "state").write_text("in the way")
    with capture_logs() as said:
        written = [writer.says("warning"), writer.says("info"), writer.says("error")]
        keeper.look()
        written.append(writer.says("error"))
        keeper.look()
        (tmp_path / "state").unlink()
        keeper.look()
        keeper.look()

    assert [line["event"] for line in said] == ["warnings_not_copied", "warnings_copied"]
    assert said[0]["why"] == "Not a directory"
    assert numbers(warnings) == [number for number in written if number != 2]


def test_a_log_that_cannot_be_written_is_seen_although_nobody_writes(node_log: NodeLog, tmp_path: Path) -> None:
    keeper = LogKeeper(node_log, tmp_path / "warnings.log")
    with capture_logs() as said:
        keeper.look()
        (tmp_path / "scratch").rename(tmp_path / "gone")
        (tmp_path / "scratch").write_text("in the way")
        keeper.look()
        keeper.look()
        (tmp_path / "scratch").unlink()
        keeper.look()

    assert [line["event"] for line in said] == ["log_not_written", "log_written"]
    assert node_log.path.exists()


def test_what_a_process_prints_without_end_is_emptied(node_log: NodeLog, tmp_path: Path) -> None:
    Writer(node_log).says("info")
    printed, small = node_log.path.with_name("run-0.log"), node_log.path.with_name("eval-0.log")
    printed.write_bytes(b"x" * (MOST_OUTPUT_BYTES + 1))
    small.write_bytes(b"Traceback")

    with capture_logs() as said:
        LogKeeper(node_log, tmp_path / "warnings.log").look()

    assert [(line["event"], line["process"]) for line in said] == [("output_emptied", "run-0")]
    assert (printed.stat().st_size, small.read_bytes()) == (0, b"Traceback")
