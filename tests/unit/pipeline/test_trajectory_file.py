"""A trajectory's file is what Redis had, byte for byte; whatever else is in its place is told and never a traceback."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.codec import encode
from pipeline.messages import Trajectory
from pipeline.testing.builders import a_trajectory, a_turn
from pipeline.trajectory_file import TrajectoryRecord, UnreadableTrajectory, read, record_of, write

BODY = encode(a_trajectory(answer="¬∀"))
PARTS = {"prompt": b"\x00p", "grade": b"", "of a newer program": b"\xff" * 300}
FACTS = {"job": "swe.e0-1.0.3", "task": "swe", "outcome": "ok"}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A file as `save` writes it."""
    path = tmp_path / "one.trajectory"
    write(path, record_of("swe.e0-1.0.3", BODY, FACTS))
    return path


def outcome(path: Path) -> TrajectoryRecord | UnreadableTrajectory:
    """What reading gives; anything but one of these two fails the test."""
    try:
        return read(path)
    except UnreadableTrajectory as error:
        return error


def test_what_was_written_is_read_and_the_body_is_the_same_bytes(saved: Path) -> None:
    record = read(saved)

    assert record.body == BODY
    assert record.facts == FACTS
    assert record.ended
    assert record.trajectory.answer == "¬∀"
    assert [path.name for path in saved.parent.iterdir()] == ["one.trajectory"]


def test_two_lines_of_text_say_what_it_is(saved: Path) -> None:
    first, second, rest = saved.read_bytes().split(b"\n", 2)

    assert first == b"rollstream-trajectory 1"
    assert json.loads(second)["job"] == "swe.e0-1.0.3"
    assert rest == BODY


def test_parts_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "whole.trajectory"
    write(path, record_of("j", BODY, FACTS, parts=PARTS))

    record = read(path)

    assert path.read_bytes().startswith(b"rollstream-trajectory 2\n")
    assert (record.body, record.parts, record.facts) == (BODY, PARTS, FACTS)


def test_a_record_of_a_running_job_says_so(tmp_path: Path) -> None:
    path = tmp_path / "running.trajectory"
    write(path, record_of("j", BODY, FACTS, ended=False))

    assert not read(path).ended


def test_a_bare_body_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bare"
    path.write_bytes(BODY)

    assert read(path).body == BODY
    assert read(path).facts == {}


@given(data=st.data())
def test_a_file_that_was_cut_or_changed_anywhere_is_told(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("hurt") / "one.trajectory"
    write(path, record_of("j", BODY, FACTS, parts=data.draw(st.sampled_from([{}, PARTS]))))
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    hurt = data.draw(st.sampled_from([whole[:place], whole + b"\x00", whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]]))
    path.write_bytes(hurt)

    found = outcome(path)

    # what can have changed without a complaint is a fact about the job, never the body
    if isinstance(found, UnreadableTrajectory):
        assert str(path) in str(found)
    else:
        assert found.body == BODY
        assert set(found.parts.values()) <= set(PARTS.values())


@given(st.binary(max_size=300))
def test_any_bytes_are_a_record_or_a_clear_error(content: bytes) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"any-{os.getpid()}.trajectory"
    path.write_bytes(content)
    found = outcome(path)
    path.unlink()

    assert found.why if isinstance(found, UnreadableTrajectory) else isinstance(found.trajectory, Trajectory)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it begins with b''"),
        (b"PK\x03\x04", "not with 'rollstream-trajectory ' or a body"),
        (b"rollstream-trajectory 9\n{}\n", "format '9', this program reads 1 and 2"),
        (b"rollstream-trajectory 1\n{", "no JSON object on one line"),
        (b"rollstream-trajectory 1\n" + b"[" * 60_000 + b"\n", "its header is no JSON"),
        (b"rollstream-trajectory 1\n[]\n", "no JSON object on one line"),
        (b'rollstream-trajectory 1\n{"bytes": 5}\nab', "a body of 5 bytes was written, 2 are there"),
        (b'rollstream-trajectory 1\n{"bytes": 2, "sha256": 7}\nab', "its checksum is another one"),
        (b'rollstream-trajectory 2\n{"bytes": 2, "sha256": 7, "parts": []}\nab', "its parts are [], not a map"),
        (b'rollstream-trajectory 2\n{"bytes": 1, "parts": {"p": 1}}\nab', "a body of 1 bytes and 1 parts was written, 2 are there"),
        (b'rollstream-trajectory 2\n{"bytes": 3, "parts": {"p": {"bytes": -1}}}\nab', "cut or grown"),
        (b'rollstream-trajectory 2\n{"bytes": true, "parts": {"p": {"bytes": 1}}}\nab', "cut or grown"),
        (b"\x00\xc1", "FormatError"),
        (b"\x00\x81\xa1v\xcd\x03\xe8", "1000"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "wrong"
    path.write_bytes(content)

    with pytest.raises(UnreadableTrajectory) as told:
        read(path)

    assert why in str(told.value)


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    """A pipe would be waited for without end."""
    os.mkfifo(tmp_path / "pipe")

    for name in ("pipe", "nothing", "."):
        with pytest.raises(UnreadableTrajectory):
            read(tmp_path / name)


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    with pytest.raises(IsADirectoryError):
        write(tmp_path / "folder", record_of("j", BODY, FACTS))

    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_records_with_wild_numbers_are_read(tmp_path: Path) -> None:
    path = tmp_path / "wild"
    path.write_bytes(encode(replace(a_trajectory(), turns=(a_turn(0, start=2**40, seed=2**63, checksum=-7),))))

    assert read(path).trajectory.turns[0].start == 2**40


def test_names_that_are_no_utf_8_are_read_as_text_that_is(tmp_path: Path) -> None:
    """`trajectory check --json` ended in a traceback at such a file, and with it all that was found of the others."""
    path = tmp_path / os.fsdecode(b"a\xff.trajectory")
    write(path, record_of("job", BODY, {"job": "\ud800", "\udfff": "x"}))

    record = read(path)

    assert (record.name, dict(record.facts)) == (str(tmp_path / r"a\udcff.trajectory"), {"job": r"\ud800", r"\udfff": "x"})
