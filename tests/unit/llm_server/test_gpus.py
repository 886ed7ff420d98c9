"""Which GPUs a node's servers have, and the key that they share."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ops.llm_server.gpus import divide, gpus_here
from ops.llm_server.key_file import key_in, read_key
from pipeline.errors import InvalidRequest


def test_what_was_asked_for_goes_before_the_allocation_and_that_before_the_machine(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia0"):
        (tmp_path / name).touch()
    allocation = {"CUDA_VISIBLE_DEVICES": "GPU-4f2a-11,MIG-7/1/0"}

    assert gpus_here("3, 1", allocation, tmp_path) == ("3", "1")
    assert gpus_here(None, allocation, tmp_path) == ("GPU-4f2a-11", "MIG-7/1/0")
    assert gpus_here(None, {"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()
    assert gpus_here(None, {}, tmp_path) == ("0", "2", "10")


@pytest.mark.parametrize(("text", "says"), [("0,1,0", "twice"), ("0;1", "'0;1' is no GPU"), ("all", "is no GPU"), ("-1", "is no GPU")])
def test_names_that_are_none_are_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        gpus_here(text, {})


def test_neighbours_stay_together_and_no_gpu_has_two_servers() -> None:
    assert divide("01234567", 2, None) == [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7")]
    assert divide("01234567", 4, 1) == [("0", "1", "2", "3")]
    assert divide("012", 2, 1) == [("0", "1")]


@pytest.mark.parametrize(
    ("gpus", "per_server", "servers", "says"),
    [("", 1, None, "no GPU here"), ("012", 2, None, "do not divide"), ("0123", 2, 3, "3 servers of 2 GPUs"), ("0", 2, 1, "1 servers of 2")],
)
def test_what_cannot_be_divided_is_told(gpus: str, per_server: int, servers: int | None, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        divide(gpus, per_server, servers)


def test_a_key_is_made_once_for_its_owner_alone_also_by_many_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "key"

    with ThreadPoolExecutor(16) as many:
        found = {*many.map(key_in, [path] * 64)}

    assert found == {read_key(path)}
    assert len(found.pop()) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["key"]


def test_a_key_that_everybody_may_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("two words\n")
    path.chmod(0o600)
    with pytest.raises(InvalidRequest, match="expected one line"):
        key_in(path)

    path.write_text("s3cret\n")
    path.chmod(0o644)
    with pytest.raises(InvalidRequest, match="everybody may read"):
        key_in(path)

    path.chmod(0o640)
    assert key_in(path) == "s3cret"
