"""Trees and archives made by strangers (`workers/sandbox/file_tree.py`): each ends typed, outside of the folder nothing is touched, and
nothing is held for each name."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workers.sandbox.file_tree import TreeError, list_folder, pack, read, unpack, write
from workers.sandbox.local.folder import remove_tree

MIB = 1024**2


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """Removed by us: what removes pytest's folders recurses, and these are deeper than Python does."""
    yield tmp_path
    remove_tree(tmp_path)


def a_tar(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for member in members:
            header, content = member if isinstance(member, tuple) else (member, b"")
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    return stream.getvalue()


def a_member(name: str, kind: bytes = tarfile.REGTYPE, *, to: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, to, mode
    return member


def a_huge_header(kind: bytes) -> bytes:
    """A header that says: the next gigabyte is a name."""
    member = a_member("x", kind)
    member.size = 1024**3
    return member.tobuf(tarfile.GNU_FORMAT) + b"a" * 10240


def headers_without_end() -> bytes:
    """Headers each of which only announces the next one."""
    one = a_member("x", tarfile.GNUTYPE_LONGNAME)
    one.size = 1
    return (one.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")) * 5000


def a_negative_size() -> bytes:
    header = bytearray(a_member("x").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 4 + struct.pack(">q", -(2**40))
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


REFUSED: dict[str, tuple[bytes, str]] = {
    "up": (a_tar(a_member("../up")), "outside"),
    "up and back in the middle": (a_tar(a_member("a/../../up")), "outside"),
    "link up": (a_tar(a_member("l", tarfile.SYMTYPE, to="../..")), "outside"),
    "absolute link": (a_tar(a_member("l", tarfile.SYMTYPE, to="/etc")), "outside"),
    "link by links": (
        a_tar(a_member("d/e/l", tarfile.SYMTYPE, to="../.."), a_member("d/e/m", tarfile.SYMTYPE, to="l/.."), a_member("d/e/m/x")),
        "outside",
    ),
    "hard link up": (a_tar(a_member("h", tarfile.LNKTYPE, to="../secret")), "outside"),
    "hard link to nothing": (a_tar(a_member("h", tarfile.LNKTYPE, to="missing")), "not_found"),
    "loop": (a_tar(a_member("l", tarfile.SYMTYPE, to="l"), a_member("l/x")), "outside"),
    "device": (a_tar(a_member("dev", tarfile.CHRTYPE)), "outside"),
    "fifo": (a_tar(a_member("pipe", tarfile.FIFOTYPE)), "outside"),
    "the folder itself": (a_tar(a_member(".", tarfile.REGTYPE)), "outside"),
    "file over a folder": (a_tar(a_member("d", tarfile.DIRTYPE), a_member("d")), "not_a_file"),
    "below a file": (a_tar(a_member("f"), a_member("f/x")), "not_a_folder"),
    "a path too long": (a_tar(a_member("/".join(["d" * 200] * 25))), "too_large"),
    "a name too long": (a_tar(a_member("n" * 300)), "not_found"),
    "cut in a file": (a_tar((a_member("f"), bytes(5000)))[:2000], "bad_archive"),
    "cut in a header": (a_tar(a_member("f"))[:300], "bad_archive"),
    "no tar": (b"no archive at all" * 100, "bad_archive"),
    "nothing": (b"", "bad_archive"),
    "a name of a gigabyte": (a_huge_header(tarfile.GNUTYPE_LONGNAME), "bad_archive"),
    "an extended header of a gigabyte": (a_huge_header(tarfile.XHDTYPE), "bad_archive"),
    "a sparse file": (a_huge_header(tarfile.GNUTYPE_SPARSE), "bad_archive"),
    "headers without end": (headers_without_end(), "bad_archive"),
    "a negative size": (a_negative_size(), "bad_archive"),
    "a file of a gigabyte": (a_member("f").tobuf()[:124] + b"10000000000\0" + a_member("f").tobuf()[136:], "bad_archive"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_an_archive_that_tries_something_is_refused_and_touches_nothing_outside(tmp_path: Path, what: str) -> None:
    archive, trouble = REFUSED[what]
    (tmp_path / "secret").write_text("of the node")
    before = sorted(path.name for path in tmp_path.iterdir())

    tracemalloc.start()
    try:
        with pytest.raises(TreeError) as caught:
            unpack(io.BytesIO(archive), tmp_path / "in" / "folder", 10 * MIB)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert caught.value.trouble == trouble, caught.value
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({*before, "in"})
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["folder"]
    assert (tmp_path / "secret").stat().st_nlink == 1
    assert held < 10 * MIB


def test_what_is_in_the_way_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    """A FIFO that the guest put there would hold whoever opens it, a link would lead the content elsewhere."""
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(folder / "fifo")
    (tmp_path / "secret").write_text("of the node")
    (folder / "link").symlink_to(tmp_path / "secret")
    os.link(tmp_path / "secret", folder / "hard")
    (folder / "in").symlink_to("there")

    names = ("fifo", "link", "hard", "twice", "twice", "in/x")
    unpack(io.BytesIO(a_tar(a_member("there", tarfile.DIRTYPE), *((a_member(name), name.encode()) for name in names))), folder, MIB)

    assert {name: (folder / name).read_text() for name in names} == {name: name for name in names}
    assert (folder / "there" / "x").read_text() == "in/x"  # links within it are followed, as by any program
    assert (tmp_path / "secret").read_text() == "of the node"


def test_modes_are_a_users_and_absolute_names_begin_at_the_folder(tmp_path: Path) -> None:
    archive = a_tar(
        a_member("/etc/run", mode=0o6777),
        a_member("plain", mode=0o011),
        a_member("hard", tarfile.LNKTYPE, to="/etc/run"),
        form=tarfile.GNU_FORMAT,
    )

    unpack(io.BytesIO(archive), tmp_path / "folder", MIB)

    assert (tmp_path / "folder/etc/run").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "folder/plain").stat().st_mode & 0o7777 == 0o600
    assert (tmp_path / "folder/hard").stat().st_nlink == 2


def test_many_members_cost_no_memory(tmp_path: Path) -> None:
    """The reader of Python keeps each: 200,000 of them were some 300 MB."""
    archive = io.BytesIO(a_tar(*[a_member("d", tarfile.DIRTYPE)]).rstrip(b"\0").ljust(512, b"\0") * 3000 + bytes(1024))

    tracemalloc.start()
    try:
        unpack(archive, tmp_path / "folder", MIB)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert held < MIB


def packed(path: Path, max_bytes: int = MIB) -> dict[str, tarfile.TarInfo]:
    stream = io.BytesIO()
    pack(path, stream, max_bytes)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as archive:
        return {member.name: member for member in archive}


def test_a_tree_of_a_stranger_goes_out_as_it_is(tmp_path: Path) -> None:
    """Deeper than Python recurses, names that are no text, links that lead anywhere."""
    top = tmp_path / "top"
    deep = top.joinpath(*["d"] * 1200)
    os.makedirs(os.path.join(top, *["d"] * 400))
    for upto in (800, 1200):
        here = os.open(top.joinpath(*["d"] * (upto - 400)), os.O_RDONLY)
        for _ in range(400):
            os.mkdir("d", dir_fd=here)
            inner = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
        os.close(here)
    (deep / "end").write_text("deep")
    (top / os.fsdecode(b"na\xffme")).write_text("x")
    (top / "out").symlink_to("/etc/passwd")
    os.link(top / os.fsdecode(b"na\xffme"), top / "other")
    os.mkfifo(top / "fifo")

    found = packed(top)

    assert found["top/" + "d/" * 1200 + "end"].size == 4
    assert found["top/out"].linkname == "/etc/passwd"
    assert {found[f"top/{name}"].type for name in ("other", os.fsdecode(b"na\xffme"))} == {tarfile.REGTYPE, tarfile.LNKTYPE}
    assert "top/fifo" not in found


def too_deep(top: Path) -> None:
    os.makedirs(top)
    here = os.open(top, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=here)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def sparse(top: Path) -> None:
    top.mkdir()
    with (top / "hole").open("wb") as file:
        file.truncate(1024**4)


@pytest.mark.parametrize("make", [too_deep, sparse])
def test_what_cannot_go_out_says_so_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "top")

    with pytest.raises(TreeError) as caught:
        packed(tmp_path / "top")

    assert caught.value.trouble == "too_large"


def test_a_file_that_grows_while_it_is_packed_is_as_long_as_it_was(tmp_path: Path) -> None:
    grows = tmp_path / "grows"
    grows.write_bytes(b"x" * 100_000)

    class Growing(io.BytesIO):
        def write(self, data: object) -> int:
            with grows.open("ab") as file:
                file.write(b"y" * 1000)
            return super().write(data)  # type: ignore[arg-type]

    class Shrinking(io.BytesIO):
        def write(self, data: object) -> int:
            os.truncate(grows, 10)
            return super().write(data)  # type: ignore[arg-type]

    for stream, size in ((Growing(), 100_000), (Shrinking(), None)):
        pack(grows, stream, MIB)
        stream.seek(0)
        with tarfile.open(fileobj=stream) as archive:
            (member,) = archive
            assert size is None or member.size == size
            content = archive.extractfile(member)
            assert content is not None
            assert len(content.read()) == member.size


def test_reading_has_bounds_that_hold_before_a_byte_is_read(tmp_path: Path) -> None:
    sparse(tmp_path / "s")
    tracemalloc.start()
    try:
        with pytest.raises(TreeError) as caught:
            read(tmp_path / "s" / "hole", 100 * MIB, follow=True)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.trouble == "too_large"
    assert held < MIB
    assert read(Path("/proc/self/status"), MIB, follow=True)  # says that it has no bytes
    with pytest.raises(TreeError, match="too_large"):
        read(Path("/proc/self/status"), 10, follow=True)


def test_folders_on_the_way_are_made_however_many(tmp_path: Path) -> None:
    path = tmp_path.joinpath(*["d"] * 1500, "f")

    write(path, b"x", executable=False, follow=True)

    assert read(path, 10, follow=True) == b"x"


def test_a_folder_with_more_names_than_anybody_reads_is_refused(tmp_path: Path) -> None:
    (tmp_path / "first").touch()
    for number in range(100):
        os.link(tmp_path / "first", tmp_path / f"{number}")

    with pytest.raises(TreeError) as caught:
        list_folder(tmp_path, most=100)

    assert caught.value.trouble == "too_large"
    assert len(list_folder(tmp_path, most=101)) == 101
