"""Notes of launchers: whom a successor may end, and whom never (docs/adr/0027-node.md, invariant 2)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from ops.node.down import end_nodes_here
from ops.node.files import NodeFiles, NodeTaken, notes_here, read_note
from ops.node.sweeping import sweep_dead


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True) as process:
        yield process
        process.kill()


def files(folder: Path, boot: str = "a") -> NodeFiles:
    return NodeFiles(folder / "run" / "nodes", "rs", "n1", boot)


def change(path: Path, **fields: object) -> None:
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), **fields}))


def test_a_name_has_one_launcher_on_a_machine_and_its_successor_knows_its_boot(tmp_path: Path) -> None:
    with files(tmp_path) as first:
        assert first.dead_boot == ""
        with pytest.raises(NodeTaken, match="another process of this machine is the launcher of node n1"), files(tmp_path, "b"):
            pass

    with files(tmp_path, "b") as second:
        assert second.dead_boot == "a"


def test_what_a_note_names_is_ended(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    with files(tmp_path) as first:
        first.write({"run-0": stranger.pid}, logs=tmp_path, grace_s=1)

    with files(tmp_path, "b") as second:
        assert second.end_predecessor() == ["run-0"]
    assert stranger.wait(10) != 0


@pytest.mark.parametrize("wrong", ["start", "boot"])
def test_a_process_with_the_same_number_is_not_touched(tmp_path: Path, stranger: subprocess.Popen[bytes], wrong: str) -> None:
    with files(tmp_path) as first:
        first.write({"run-0": stranger.pid}, logs=tmp_path, grace_s=1)
    note = tmp_path / "run/nodes/rs.n1.json"
    started = orjson.loads(note.read_bytes())["children"]["run-0"][1]
    change(note, launcher=[stranger.pid, 1])  # that of this test is this process
    change(note, **({"children": {"run-0": [stranger.pid, started - 1]}} if wrong == "start" else {"machine": "an earlier boot"}))

    with files(tmp_path, "b") as second:
        assert second.end_predecessor() == []
    assert end_nodes_here(lambda _: None, tmp_path / "run/nodes")
    assert stranger.poll() is None


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"launcher": 1}', b"\xff"])
def test_a_damaged_note_counts_as_none(tmp_path: Path, text: bytes) -> None:
    with files(tmp_path) as first:
        (tmp_path / "run/nodes/rs.n1.json").write_bytes(text)

        assert read_note(tmp_path / "run/nodes/rs.n1.json") is None
        assert first.end_predecessor() == []
        assert list(notes_here(tmp_path / "run/nodes")) == []


def test_down_says_when_nothing_is_up(tmp_path: Path) -> None:
    said: list[object] = []

    assert end_nodes_here(said.append, tmp_path)
    assert said == ["no node is up"]


def test_what_a_process_runs_of_is_not_swept(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    """Its note is how the next launcher of the name finds it. Nor what a launcher has."""
    folder = tmp_path / "run/nodes"
    with files(tmp_path) as first:
        first.write({"run-0": stranger.pid}, logs=tmp_path, grace_s=1)
        assert sweep_dead(folder, older_s=0, dry_run=False) == 0

    assert sweep_dead(folder, older_s=0, dry_run=False) == 0
    stranger.kill()
    stranger.wait()
    assert sweep_dead(folder, older_s=60, dry_run=False) == 0, "it has just begun"
    assert sweep_dead(folder, older_s=0, dry_run=True) == sweep_dead(folder, older_s=0, dry_run=False) == 1
    assert [path.name for path in folder.iterdir()] == ["rs.n1.lock"]
