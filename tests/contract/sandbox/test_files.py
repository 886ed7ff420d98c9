"""Files in and out. The tree belongs to whoever runs in the sandbox; what it contains must not lead elsewhere, nor hang who reads it."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from tests.contract.sandbox.rooms import Room
from workers.sandbox import Sandbox, SandboxFileError
from workers.sandbox.archives import pack_files

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def sandbox(room: Room) -> Sandbox:
    return room.sandbox


@pytest.fixture
def place(room: Room) -> Path:
    return room.place


async def test_what_is_written_is_what_commands_see_and_what_is_read(sandbox: Sandbox) -> None:
    await sandbox.write_file("deep/er/file", b"\x00\xffcontent")

    seen = await sandbox.exec("od -An -tx1 deep/er/file | head -c 12", timeout_s=10)

    assert seen.stdout == b" 00 ff 63 6f"
    assert await sandbox.read_file("deep/er/file") == b"\x00\xffcontent"
    assert await sandbox.read_file(f"{sandbox.workdir}/deep/er/file") == b"\x00\xffcontent"


async def test_a_shorter_content_replaces_a_longer_one(sandbox: Sandbox) -> None:
    await sandbox.write_file("f", b"long content")
    await sandbox.write_file("f", b"short")

    assert await sandbox.read_file("f") == b"short"


async def test_an_executable_file_runs(sandbox: Sandbox) -> None:
    await sandbox.write_file("run.sh", b"#!/bin/sh\necho ran\n", executable=True)

    assert (await sandbox.exec(["./run.sh"], timeout_s=10)).stdout == b"ran\n"


async def test_a_folder_is_listed_sorted_with_kinds(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir -p d/b; printf 123 >d/a; ln -s a d/c; mkfifo d/d", timeout_s=10)

    entries = await sandbox.list("d")

    assert [(entry.name, entry.kind) for entry in entries] == [("a", "file"), ("b", "folder"), ("c", "link"), ("d", "other")]
    assert entries[0].size_bytes == 3


@pytest.mark.parametrize(
    ("path", "trouble"),
    [
        ("missing", "not_found"),
        ("folder", "not_a_file"),
        ("fifo", "not_a_file"),
        ("big", "too_large"),
        ("file/below", "not_a_folder"),
        ("a\0b", "not_found"),
    ],
)
async def test_a_path_that_cannot_be_read_says_why_at_once(sandbox: Sandbox, path: str, trouble: str) -> None:
    await sandbox.exec("mkdir folder; mkfifo fifo; head -c 1001 /dev/zero >big; echo >file", timeout_s=10)

    with pytest.raises(SandboxFileError) as caught:
        await sandbox.read_file(path, max_bytes=1000)

    assert caught.value.trouble == trouble


LEADING_OUT = ("../owner.json", "{place}/secret", "link-out", "linked-folder/secret", "up/scratch", "/proc/1/root{place}/secret")


@pytest.mark.parametrize("path", LEADING_OUT)
async def test_no_path_leads_to_files_of_the_node(sandbox: Sandbox, place: Path, path: str) -> None:
    (place / "secret").write_text("of the node")
    await sandbox.exec(f"ln -s {place}/secret link-out; ln -s {place} linked-folder; ln -s ../../.. up", timeout_s=10)
    path = path.format(place=place)

    for reach in (sandbox.read_file, sandbox.list):
        with pytest.raises(SandboxFileError) as caught:
            await reach(path)
        assert caught.value.trouble in ("outside", "not_found", "denied", "not_a_folder")
    packed = io.BytesIO()
    with contextlib.suppress(SandboxFileError):  # a link may be packed, as the link that it is
        await sandbox.download(path, packed)
    assert b"of the node" not in packed.getvalue()


@pytest.mark.parametrize("path", ["../../escaped", "{place}/escaped", "linked-folder/escaped"])
async def test_nothing_is_written_on_the_node(sandbox: Sandbox, place: Path, path: str) -> None:
    """Where there are walls such a path may be the sandbox's own, and be written."""
    await sandbox.exec(f"ln -s {place} linked-folder", timeout_s=10)
    path = path.format(place=place)

    with contextlib.suppress(SandboxFileError):
        await sandbox.write_file(f"{path}-file", b"x")
    with contextlib.suppress(SandboxFileError):
        await sandbox.upload(pack_files({"packed": b"x"}), f"{path}-folder")

    assert escaped_below(place, own=Path(sandbox.handle.folder)) == []


def escaped_below(place: Path, own: Path) -> list[Path]:
    """What was written outside of the layers and folders that are a sandbox's own."""
    return [found for found in place.rglob("*escaped*") if not any(own / layer in found.parents for layer in ("upper", "tmp"))]


async def test_writing_to_a_fifo_does_not_wait_for_its_reader(sandbox: Sandbox) -> None:
    await sandbox.exec("mkfifo fifo", timeout_s=10)

    with pytest.raises(SandboxFileError, match="not a file"):
        await sandbox.write_file("fifo", b"x")


async def test_an_archive_goes_in_and_comes_out_again(sandbox: Sandbox) -> None:
    await sandbox.upload(pack_files({"src/a.py": b"print(1)\n", "src/empty": b""}), "work")
    await sandbox.exec("cd work; ln -s a.py src/link; mkfifo src/fifo; chmod +x src/a.py", timeout_s=10)

    stream = io.BytesIO()
    await sandbox.download("work/src", stream)

    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        members = {member.name: member for member in archive}
        assert sorted(members) == ["src", "src/a.py", "src/empty", "src/link"]
        assert members["src/link"].linkname == "a.py"
        assert members["src/a.py"].mode & 0o100
        content = archive.extractfile("src/a.py")
        assert content is not None
        assert content.read() == b"print(1)\n"


def an_archive(*members: tarfile.TarInfo) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for member in members:
            archive.addfile(member)
    stream.seek(0)
    return stream


def a_member(name: str, *, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = to
    return member


@pytest.mark.parametrize(
    "evil",
    [
        an_archive(a_member("../up")),
        an_archive(a_member("link", kind=tarfile.SYMTYPE, to="/etc"), a_member("link/x")),
        an_archive(a_member("link", kind=tarfile.SYMTYPE, to="../../..")),
        an_archive(a_member("hard", kind=tarfile.LNKTYPE, to="/etc/passwd")),
        an_archive(a_member("device", kind=tarfile.CHRTYPE)),
        io.BytesIO(b"no archive at all" * 100),
    ],
    ids=["up", "through a link", "link up", "hard link", "device", "no tar"],
)
async def test_an_archive_that_leads_elsewhere_is_refused(sandbox: Sandbox, evil: io.BytesIO) -> None:
    evil.seek(0)

    with pytest.raises(SandboxFileError):
        await sandbox.upload(evil)


async def test_archives_have_a_bound_both_ways(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxFileError, match="too large"):
        await sandbox.upload(pack_files({"big": b"x" * 2000}), max_bytes=1000)

    await sandbox.exec("head -c 2000 /dev/zero >many", timeout_s=10)
    with pytest.raises(SandboxFileError, match="too large"):
        await sandbox.download(".", io.BytesIO(), max_bytes=1000)


async def test_a_tree_made_to_hang_or_break_its_reader_does_neither(sandbox: Sandbox) -> None:
    """A FIFO where an upload writes, folders deeper than Python recurses, a hole of a gigabyte, names that are no text."""
    odd = os.fsdecode(b"na\xffme")
    await sandbox.exec(
        ["bash", "-c", "mkfifo fifo; mkdir -p t/$(printf 'd/%.0s' {1..600}); printf x >t/$'na\\xffme'; truncate -s 1G hole"], timeout_s=20
    )

    await sandbox.upload(pack_files({"fifo": b"replaced"}))
    stream = io.BytesIO()
    await sandbox.download("t", stream)

    assert await sandbox.read_file("fifo") == b"replaced"
    assert [entry.name for entry in await sandbox.list("t")] == ["d", odd]
    assert await sandbox.read_file(f"t/{odd}") == b"x"
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        assert {f"t/{odd}", "t/" + "/".join("d" * 600)} <= {member.name for member in archive}
    for reach in (sandbox.read_file("hole", max_bytes=10**6), sandbox.download("hole", io.BytesIO(), max_bytes=10**6)):
        with pytest.raises(SandboxFileError, match="too large"):
            await reach
