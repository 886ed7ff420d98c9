"""What folders occupy, counted by the process that is started for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from workers.sandbox.limits.disk import DiskCounter, DiskUse

MANY = 10_000


@pytest.fixture
async def counter() -> AsyncIterator[DiskCounter]:
    counter = DiskCounter()
    yield counter
    await counter.close()


async def test_files_count_with_the_blocks_they_have_once_each_and_links_are_not_followed(counter: DiskCounter, tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    (tree / "deep" / "deeper").mkdir(parents=True)
    outside.mkdir()
    (outside / "large").write_bytes(b"x" * 1_000_000)
    (tree / "deep" / "deeper" / "file").write_bytes(b"x" * 100_000)
    os.link(tree / "deep" / "deeper" / "file", tree / "again")
    with (tree / "sparse").open("wb") as file:
        file.truncate(10**9)
    (tree / "away").symlink_to(outside)

    used = await counter.count([tree, tmp_path / "missing"], max_files=MANY)

    blocks = sum((tree / name).lstat().st_blocks for name in ("deep", "deep/deeper", "deep/deeper/file", "sparse", "away"))
    assert used == DiskUse(bytes=blocks * 512, files=5, uncounted=0)


async def test_a_folder_without_permissions_is_counted_and_left_as_it_was(counter: DiskCounter, tmp_path: Path) -> None:
    """As root nothing is hidden by permissions; as the user that sandboxes run as it would be a way around the quota."""
    for name, mode in (("none", 0o000), ("unsearchable", 0o600), ("unreadable", 0o300)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 50_000)
        (tmp_path / name).chmod(mode)

    used = await counter.count([tmp_path], max_files=MANY)

    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("none", "unsearchable", "unreadable")]
    for name in ("none", "unsearchable", "unreadable"):
        (tmp_path / name).chmod(0o700)
    assert (used.files, used.uncounted) == (6, 0)
    assert used.bytes >= 150_000
    assert modes == [0o000, 0o600, 0o300]


async def test_a_count_stops_when_there_are_too_many(counter: DiskCounter, tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / str(number)).touch()

    used = await counter.count([tmp_path], max_files=100)

    assert 100 < used.files < 110


async def test_folders_nested_without_end_are_said_to_be_uncounted(counter: DiskCounter, tmp_path: Path) -> None:
    """Each level holds a descriptor: a deep nest must not take all that the process may have, nor hide what is in it."""
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(400):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)

    used = await counter.count([tmp_path], max_files=MANY)

    assert used.uncounted == 1
    assert used.files > 100


async def test_a_cancelled_count_does_not_answer_the_next(counter: DiskCounter, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "file").touch()
    first = asyncio.ensure_future(counter.count([tmp_path / "one"], max_files=MANY))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)

    assert (await counter.count([tmp_path / "two"], max_files=MANY)).files == 1
