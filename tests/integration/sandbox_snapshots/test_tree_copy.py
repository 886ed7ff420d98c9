"""The process that copies (`workers/sandbox/local/tree_copy.py`), by itself."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.testing.wait import wait_until
from workers.sandbox.local.folder import remove_tree
from workers.sandbox.local.tree_copier import SCRIPT, CopyError, copy_layers

ROOM = {"max_bytes": 2**40, "max_files": 2**40, "floor_bytes": 0}
DEEP = 1500


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Removed by us: what removes pytest's folders recurses, and these are deeper than Python does."""
    yield tmp_path
    remove_tree(tmp_path)


async def test_depth_costs_neither_stack_nor_descriptors_and_what_was_closed_is_closed_again(tmp_path: Path) -> None:
    """The folders let nobody look into them; paths are longer than any call takes. As root nothing is closed, and the rest holds."""
    source, taken, restored = (tmp_path / name for name in ("source", "taken", "restored"))
    for folder in (source / "upper", taken, restored):
        folder.mkdir(parents=True)
    make_chain(source / "upper", mode=0o300)

    first = await copy_layers("take", source, taken, ["upper", "missing"], **ROOM)
    second = await copy_layers("restore", taken, restored, ["upper"], **ROOM)

    assert first.files == second.files == DEEP + 1
    assert modes(source / "upper") == modes(restored / "upper") == [0o300] * DEEP


async def test_a_bound_is_kept_and_what_was_opened_for_it_is_closed_again(tmp_path: Path) -> None:
    source, taken = tmp_path / "source", tmp_path / "taken"
    for folder in (source / "upper", taken):
        folder.mkdir(parents=True)
    make_chain(source / "upper", mode=0o300)

    for bound, value in (("max_files", 700), ("max_bytes", 100), ("floor_bytes", 2**62)):
        with pytest.raises(CopyError) as caught:
            await copy_layers("take", source, taken, ["upper"], **{**ROOM, bound: value})
        assert caught.value.trouble == ("full" if bound == "floor_bytes" else "too_large")
        os.rename(taken, tmp_path / f"left-{bound}")
        taken.mkdir()

    assert modes(source / "upper") == [0o300] * DEEP


async def test_who_is_cancelled_has_ended_the_copy_by_then(tmp_path: Path) -> None:
    source, taken = tmp_path / "source", tmp_path / "taken"
    for folder in (source / "upper", taken):
        folder.mkdir(parents=True)
    for number in range(3000):
        (source / "upper" / str(number)).touch()

    copying = asyncio.create_task(copy_layers("take", source, taken, ["upper"], **ROOM))
    await wait_until((taken / "upper").exists, "the copy has begun")
    copying.cancel()
    await asyncio.wait([copying])

    there = len(list((taken / "upper").iterdir()))
    assert copying.cancelled()
    assert there < 3000 or not (taken / ".links").exists()
    assert len(list((taken / "upper").iterdir())) == there


async def test_it_ends_when_its_pipe_does_and_closes_what_it_opened(tmp_path: Path) -> None:
    """As when the worker was killed: nobody is left who could end it."""
    source, taken = tmp_path / "source", tmp_path / "taken"
    for folder in (source / "upper", taken):
        folder.mkdir(parents=True)
    make_chain(source / "upper", mode=0o300)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", str(SCRIPT), "take", stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None

    question = {"from": str(source), "to": str(taken), "layers": ["upper"], **ROOM}
    process.stdin.write(json.dumps(question).encode() + b"\n")
    await wait_until((taken / "upper" / "d").exists, "the copy has begun")
    process.stdin.close()

    assert await process.stdout.read() == b""
    assert await process.wait() == 0
    assert modes(source / "upper") == [0o300] * DEEP


async def test_a_question_that_makes_no_sense_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(CopyError, match="No such file"):
        await copy_layers("take", tmp_path, tmp_path / "missing", ["upper"], **ROOM)


def make_chain(top: Path, *, mode: int) -> None:
    here = os.open(top, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    for _ in range(DEEP):
        above = os.open("..", os.O_RDONLY, dir_fd=here)
        os.fchmod(here, mode)
        os.close(here)
        here = above
    os.close(here)


def modes(top: Path) -> list[int]:
    here = os.open(top, os.O_PATH)
    found = []
    while True:
        try:
            found.append(stat.S_IMODE(os.stat("d", dir_fd=here).st_mode))
        except FileNotFoundError:
            os.close(here)
            return found
        inner = os.open("d", os.O_PATH, dir_fd=here)
        os.close(here)
        here = inner
