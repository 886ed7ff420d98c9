"""`rollstream node logs`: lines of several nodes by time, filtered, and harmless to a terminal."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from ops.logs.reading import Wanted, followed_lines, last_lines
from ops.logs.show import show_logs
from pipeline.log_file import SharedLogFile


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of this machine."""
    for name in ("run", "data", "scratch", "state"):
        monkeypatch.setenv(f"ROLLSTREAM_{name.upper()}_DIR", str(tmp_path / name))
    return tmp_path


def write(path: Path, second: int, event: str, *, level: str = "info", **fields: object) -> None:
    line = {
        "timestamp": f"2026-11-30T00:00:{second:02d}.000000Z",
        "level": level,
        "node": "?",
        "process": "run-0",
        "pid": 7,
        "event": event,
    }
    SharedLogFile(path, max_bytes=300, files=50).write(orjson.dumps({**line, **fields}) + b"\n")


def events(text: str) -> list[str]:
    return [re.split(r"(?:run|eval)-0  ", line)[1].split("  ")[0] for line in text.splitlines()]


def test_logs_of_nodes_come_by_time_whole_of_this_machine_and_warnings_of_others(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, copy, there = (
        folders / word for word in ("scratch/logs/n1/node.log", "state/logs/n1/warnings.log", "state/logs/n2/warnings.log")
    )
    for second in range(0, 10, 2):
        write(here, second, f"here {second}")
        write(there, second + 1, f"there {second}", level="warning")
    write(copy, 0, "not shown: its node is of this machine", level="error")

    assert show_logs("", follow=False, level="debug", unit="", process="", most=7, as_json=False) == 0

    said = capsys.readouterr()
    assert events(said.out) == [*("there 2", "here 4", "there 4", "here 6", "there 6", "here 8", "there 8")]
    assert said.out.splitlines()[0] == "2026-11-30 00:00:03.000Z warning n2 run-0  there 2"
    assert said.err == "of n2 only warnings and errors: the whole log is on the node's own disk\n"
    assert show_logs("n3", follow=False, level="debug", unit="", process="", most=7, as_json=False) == 1
    assert "no log of node n3" in capsys.readouterr().err


def test_lines_are_chosen_by_level_job_and_process(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folders / "scratch/logs/n1/node.log"
    write(path, 1, "a", job_id="r.e0-1.0.3")
    write(path, 2, "b", job_id="r.e0-1.0.31", level="error")
    write(path, 3, "c", jobs=["r.e0-1.0.3", "r.e0-1.0.4"], level="warning", process="eval-0")
    write(path, 4, "d", text="of r.e0-1.0.3")

    def chosen(*, level: str = "debug", unit: str = "", process: str = "") -> list[str]:
        assert show_logs("n1", follow=False, level=level, unit=unit, process=process, most=100, as_json=False) == 0
        return events(capsys.readouterr().out)

    assert chosen(unit="r.e0-1.0.3") == ["a", "c"]
    assert chosen(level="warning") == ["b", "c"]
    assert chosen(level="error") == ["b"]
    assert chosen(process="eval-0") == ["c"]
    assert show_logs("n1", follow=False, level="error", unit="r.e0-1.0.3", process="", most=100, as_json=False) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("no line of level error and above names r.e0-1.0.3 in the logs of n1")


def test_a_line_that_would_move_a_terminal_is_spelt_out_and_a_traceback_has_its_lines(
    folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folders / "scratch/logs/n1/node.log"
    write(path, 1, "proxy_refused", host="\x1b[2Jevil\u202e", exception="Traceback\n  \x1b]0;x\x07\nValueError: no")

    assert show_logs("n1", follow=False, level="debug", unit="", process="", most=1, as_json=False) == 0

    assert capsys.readouterr().out.splitlines() == [
        r"2026-11-30 00:00:01.000Z info    run-0  proxy_refused  host=\x1b[2Jevil\u202e",
        "    exception:",
        "    | Traceback",
        r"    |   \x1b]0;x\x07",
        "    | ValueError: no",
    ]


def test_what_is_no_line_is_told_as_one_to_a_program(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half a line ended whoever read `--json`, and a terminal obeyed what stood in it."""
    path = folders / "scratch/logs/n1/node.log"
    write(path, 1, "whole")
    with path.open("ab") as file:
        file.write(b'{"timestamp":"2026-11-30T00:00:02.000000Z","text":"\x1b[2J\xff\n[1]\n')

    assert show_logs("n1", follow=False, level="debug", unit="", process="", most=9, as_json=True) == 0

    said = capsys.readouterr().out
    found = [orjson.loads(line) for line in said.splitlines()]
    assert [line["event"] for line in found] == ["whole", "unreadable", "unreadable"]
    assert found[1]["timestamp"] == "2026-11-30T00:00:02.000000Z"
    assert "\x1b" not in said


def test_what_comes_is_followed_also_of_a_node_that_comes(folders: Path) -> None:
    logs = {"n1": folders / "n1/node.log"}
    write(logs["n1"], 1, "before")
    coming = followed_lines(lambda: logs, Wanted(level="info"), pause=lambda _: None)
    assert next(coming) == []

    write(logs["n1"], 2, "a" * 300)  # the next line renames it
    write(logs["n1"], 3, "b")
    logs["n2"] = folders / "n2/node.log"
    write(logs["n2"], 2, "c")
    write(logs["n2"], 4, "not wanted", level="debug")

    assert [(node, line.fields["event"]) for node, line in next(coming)] == [("n1", "a" * 300), ("n2", "c"), ("n1", "b")]
    assert next(coming) == []
    assert [line.fields["event"] for _, line in last_lines(logs, Wanted(), 1)] == ["not wanted"]
