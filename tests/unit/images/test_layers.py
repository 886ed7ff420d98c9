"""Layers applied to a tree: what they mean, and that nothing in them leads out of it."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from tests.image_files import Member, a_file, a_folder, a_hard_link, a_layer, a_link, a_member
from workers.sandbox.images.entries import BadArchive
from workers.sandbox.images.folder_entries import entries_of_folder
from workers.sandbox.images.oci import as_layer
from workers.sandbox.images.tar_stream import TarStream
from workers.sandbox.images.tree_writer import Bounds, TreeWriter
from workers.sandbox.images.trees import list_tree

BOUNDS = Bounds(max_bytes=64 * 1024 * 1024, max_entries=10_000)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "rootfs"
    root.mkdir()
    return root


def apply(root: Path, *layers: list[Member], bounds: Bounds = BOUNDS) -> TreeWriter:
    writer = TreeWriter(root, bounds)
    for members in layers:
        writer.apply(as_layer(TarStream(io.BytesIO(a_layer(*members))).entries()))
    return writer


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_a_layer_has_files_folders_links_modes_and_times(root: Path) -> None:
    apply(root, [a_folder("bin", 0o750), a_file("bin/run", b"#!", 0o711), a_link("bin/sh", "run"), a_hard_link("again", "bin/run")])

    assert (root / "bin/run").read_bytes() == b"#!"
    assert stat.S_IMODE((root / "bin/run").stat().st_mode) == 0o711
    assert (root / "bin/run").stat().st_mtime == 1_700_000_000
    assert stat.S_IMODE((root / "bin").stat().st_mode) == 0o750
    assert os.readlink(root / "bin/sh") == "run"
    assert (root / "again").stat().st_ino == (root / "bin/run").stat().st_ino


def test_a_later_layer_replaces_files_folders_and_links(root: Path) -> None:
    apply(
        root,
        [a_file("a", b"1"), a_folder("b"), a_file("b/inner"), a_link("c", "a")],
        [a_file("a", b"2"), a_file("b", b"now a file"), a_folder("c"), a_file("c/inner", b"x")],
    )

    assert (root / "a").read_bytes() == b"2"
    assert (root / "b").read_bytes() == b"now a file"
    assert not (root / "c").is_symlink()
    assert names(root) == ["a", "b", "c", "c/inner"]


def test_a_whiteout_removes_what_earlier_layers_put_there(root: Path) -> None:
    apply(
        root,
        [a_file("etc/a"), a_file("etc/b/inner"), a_link("etc/l", "a")],
        [a_file("etc/.wh.a"), a_file("etc/.wh.b"), a_file("etc/.wh.l")],
    )

    assert names(root) == ["etc"]


def test_a_whiteout_of_what_is_not_there_is_nothing(root: Path) -> None:
    apply(root, [a_file("a")], [a_file(".wh.b"), a_file("no/folder/.wh.c"), a_file("a/.wh.x")])

    assert names(root) == ["a"]


def test_an_opaque_folder_hides_what_was_in_it_and_keeps_what_its_layer_brings_in_either_order(root: Path) -> None:
    earlier = [a_file("d/old"), a_file("d/sub/old"), a_file("e/old"), a_file("e/sub/old")]
    apply(
        root,
        earlier,
        [a_file("d/.wh..wh..opq"), a_file("d/new"), a_file("e/new"), a_file("e/sub/new"), a_file("e/.wh..wh..opq")],
    )

    assert names(root) == ["d", "d/new", "e", "e/new", "e/sub", "e/sub/new"]


def test_a_whiteout_spares_what_its_own_layer_put_there(root: Path) -> None:
    apply(root, [a_file("a", b"old")], [a_file("a", b"new"), a_file(".wh.a")])

    assert (root / "a").read_bytes() == b"new"


def test_files_of_an_older_union_file_system_are_left_out(root: Path) -> None:
    apply(root, [a_file(".wh..wh.plnk"), a_file(".wh..wh.aufs"), a_file("kept")])

    assert names(root) == ["kept"]


@pytest.mark.parametrize("name", ["../out", "a/../../out", "..", "a/..", "./../out"])
def test_a_name_with_a_parent_in_it_is_refused(root: Path, name: str) -> None:
    with pytest.raises(BadArchive, match="leads out"):
        apply(root, [a_folder("a"), a_file(name, b"evil")])
    assert [path.name for path in root.parent.iterdir()] == ["rootfs"]


@pytest.mark.parametrize("name", [".wh...", ".wh..", ".wh."])
def test_a_whiteout_of_no_name_is_refused(root: Path, name: str) -> None:
    """`.wh...` read carelessly removes `..`: the folder that the tree stands in."""
    (root.parent / "precious").write_text("kept")

    with pytest.raises(BadArchive):
        apply(root, [a_file("a")], [a_file(name)])
    assert (root.parent / "precious").read_text() == "kept"


def test_an_absolute_name_begins_at_the_root_of_the_image(root: Path) -> None:
    apply(root, [a_file("/etc/passwd", b"root")])

    assert names(root) == ["etc", "etc/passwd"]


@pytest.mark.parametrize("target", ["/", "/outside", "../../../outside", "../outside"])
def test_a_file_through_a_link_out_of_the_tree_lands_in_the_tree(root: Path, target: str) -> None:
    """As inside a sandbox, where the root is `/`: that is also how a merged `/usr` works, `lib -> usr/lib`."""
    outside = root.parent / "outside"
    outside.mkdir()

    apply(root, [a_link("link", target)], [a_file("link/evil", b"x")])

    assert list(outside.iterdir()) == []
    assert [path for path in root.parent.rglob("evil") if not path.is_relative_to(root)] == []
    assert sum(path.name == "evil" for path in root.rglob("*")) == 1


def test_a_folder_that_is_a_link_in_the_image_is_followed(root: Path) -> None:
    apply(root, [a_folder("usr/lib"), a_link("lib", "usr/lib"), a_link("lib64", "/lib")], [a_file("lib64/x.so", b"elf")])

    assert (root / "usr/lib/x.so").read_bytes() == b"elf"


def test_a_circle_of_links_is_refused(root: Path) -> None:
    with pytest.raises(BadArchive, match="links on the way"):
        apply(root, [a_link("a", "b"), a_link("b", "a"), a_file("a/x")])


@pytest.mark.parametrize("target", ["../secret", "/../secret", "link/secret", "nowhere", "", "folder"])
def test_a_hard_link_to_what_is_no_file_of_the_image_is_refused(root: Path, target: str) -> None:
    (root.parent / "secret").write_text("s")

    with pytest.raises(BadArchive):
        apply(root, [a_folder("folder"), a_link("link", "../"), a_hard_link("stolen", target)])
    assert (root.parent / "secret").stat().st_nlink == 1


def test_a_hard_link_to_a_link_is_the_link_and_not_what_it_leads_to(root: Path) -> None:
    (root.parent / "secret").write_text("s")

    apply(root, [a_link("link", "../secret"), a_hard_link("again", "link")])

    assert (root / "again").is_symlink()
    assert (root.parent / "secret").stat().st_nlink == 1


def test_a_file_is_never_written_through_a_link_in_its_place(root: Path) -> None:
    (root.parent / "secret").write_text("s")

    apply(root, [a_link("x", str(root.parent / "secret"))], [a_file("x", b"evil")])

    assert (root.parent / "secret").read_text() == "s"
    assert (root / "x").read_bytes() == b"evil"


def test_a_hard_link_to_itself_keeps_the_file(root: Path) -> None:
    apply(root, [a_file("a", b"1"), a_hard_link("a", "./a")])

    assert (root / "a").read_bytes() == b"1"


def test_devices_and_pipes_are_left_out_and_counted(root: Path) -> None:
    writer = apply(
        root, [a_member("dev/null", tarfile.CHRTYPE), a_member("dev/sda", tarfile.BLKTYPE), a_member("p", tarfile.FIFOTYPE), a_file("a")]
    )

    assert names(root) == ["a"]
    assert writer.written.special_left_out == 3


def test_set_user_bits_are_dropped_and_counted_and_every_file_can_be_read(root: Path) -> None:
    writer = apply(root, [a_file("su", b"x", 0o6755), a_folder("g", 0o2070), a_file("g/secret", b"x", 0o000), a_folder("tmp", 0o1777)])

    assert stat.S_IMODE((root / "su").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "g").stat().st_mode) == 0o770
    assert stat.S_IMODE((root / "g/secret").stat().st_mode) == 0o400
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777
    assert writer.written.bits_dropped == 2


def test_a_folder_of_mode_zero_can_still_be_filled(root: Path) -> None:
    apply(root, [a_folder("d", 0), a_file("d/x", b"1")], [a_file("d/.wh.x")])

    assert names(root) == ["d"]


def test_names_that_differ_in_case_are_two_files(root: Path) -> None:
    apply(root, [a_file("README", b"1"), a_file("readme", b"2"), a_file("README", b"3")])

    assert ((root / "README").read_bytes(), (root / "readme").read_bytes()) == (b"3", b"2")


def test_names_that_are_no_text_are_kept(root: Path) -> None:
    apply(root, [a_file("caf\udce9\nx", b"1")])

    assert os.listdir(os.fsencode(root)) == [b"caf\xe9\nx"]
    assert b"caf\xe9\\nx" in list_tree(root).lines


@pytest.mark.parametrize("name", ["a" * 256, "/".join(["d" * 200] * 20), "/".join("d" * 201)], ids=["name", "path", "depth"])
def test_a_name_no_disk_can_have_is_refused(root: Path, name: str) -> None:
    with pytest.raises(BadArchive):
        apply(root, [a_file(name)])


def test_a_long_name_that_a_disk_can_have_is_kept(root: Path) -> None:
    name = "/".join(["d" * 200] * 10)
    for format_ in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        layer = a_layer(a_file(f"{name}/{format_}", b"x"), a_hard_link(f"hard{format_}", f"{name}/{format_}"), format=format_)
        TreeWriter(root, BOUNDS).apply(as_layer(TarStream(io.BytesIO(layer)).entries()))

        assert (root / name / str(format_)).read_bytes() == b"x"
        assert (root / f"hard{format_}").read_bytes() == b"x"


# ---- bounds


def test_a_file_that_says_it_is_huge_is_refused_before_a_byte_is_written(root: Path) -> None:
    info, _ = a_file("bomb")
    info.size = 10 * 1024**3

    with pytest.raises(BadArchive, match="GiB unpacked"):
        TreeWriter(root, BOUNDS).apply(TarStream(io.BytesIO(info.tobuf())).entries())
    assert names(root) == []


def test_a_sparse_file_is_refused(root: Path) -> None:
    info, _ = a_file("sparse")
    info.type, info.pax_headers = tarfile.REGTYPE, {"GNU.sparse.realsize": "10737418240", "GNU.sparse.major": "1"}
    with pytest.raises(BadArchive, match="sparse"):
        TreeWriter(root, BOUNDS).apply(TarStream(io.BytesIO(info.tobuf(tarfile.PAX_FORMAT))).entries())
    old, _ = a_file("old")
    old.type = tarfile.GNUTYPE_SPARSE
    with pytest.raises(BadArchive, match="sparse"):
        TreeWriter(root, BOUNDS).apply(TarStream(io.BytesIO(old.tobuf(tarfile.GNU_FORMAT))).entries())


def test_entries_are_bounded_also_those_that_take_no_room(root: Path) -> None:
    for members in ([a_file(f"f{i}") for i in range(101)], [a_file("f"), *(a_file("f/.wh.x") for _ in range(101))]):
        with pytest.raises(BadArchive, match="entries"):
            apply(root, members, bounds=Bounds(max_bytes=1 << 30, max_entries=100))


def test_folders_that_a_name_makes_on_its_way_are_counted(root: Path) -> None:
    with pytest.raises(BadArchive, match="entries"):
        apply(
            root,
            [a_file("/".join(f"d{i}" for i in range(60)) + f"/{j}/x") for j in range(60)],
            bounds=Bounds(max_bytes=1 << 30, max_entries=100),
        )


def test_a_header_that_says_it_is_huge_is_not_read_into_memory() -> None:
    info = tarfile.TarInfo("name")
    info.type, info.size = tarfile.XHDTYPE, 10 * 1024**3

    with pytest.raises(BadArchive, match="extended header"):
        list(TarStream(io.BytesIO(info.tobuf(tarfile.GNU_FORMAT))).entries())


# ---- damaged archives


@pytest.mark.parametrize("length", [1, 100, 511, 700, 1024, 1500])
def test_an_archive_that_was_cut_off_is_refused(root: Path, length: int) -> None:
    layer = a_layer(a_file("a", b"x" * 600), a_file("b", b"y" * 600))

    with pytest.raises(BadArchive, match="ends in the middle"):
        TreeWriter(root, BOUNDS).apply(TarStream(io.BytesIO(layer[:length])).entries())


def test_bytes_that_are_no_archive_are_refused() -> None:
    with pytest.raises(BadArchive, match="checksum"):
        list(TarStream(io.BytesIO(b"no tar at all " * 100)).entries())


def test_damage_in_a_header_is_noticed() -> None:
    layer = bytearray(a_layer(a_file("a", b"x")))
    layer[3] ^= 1

    with pytest.raises(BadArchive, match="checksum"):
        list(TarStream(io.BytesIO(bytes(layer))).entries())


def test_numbers_in_base_256_are_read(root: Path) -> None:
    info, content = a_file("a", b"abc")
    info.mtime, info.uid = -5.0, 1 << 40
    layer = a_layer((info, content), format=tarfile.GNU_FORMAT)

    TreeWriter(root, BOUNDS).apply(TarStream(io.BytesIO(layer)).entries())

    assert (root / "a").stat().st_mtime == -5


# ---- folders


def test_a_folder_becomes_the_same_tree(root: Path, tmp_path: Path) -> None:
    apply(
        root, [a_folder("a", 0o700), a_file("a/x", b"1", 0o640), a_hard_link("a/y", "a/x"), a_link("l", "/a/x"), a_file("z", b"2", 0o755)]
    )
    os.mkfifo(root / "pipe")
    copy = tmp_path / "copy"
    copy.mkdir()

    writer = TreeWriter(copy, BOUNDS)
    writer.apply(entries_of_folder(root))

    (root / "pipe").unlink()
    assert list_tree(copy).digest == list_tree(root).digest
    assert writer.written.special_left_out == 1
    assert (copy / "a/x").stat().st_ino == (copy / "a/y").stat().st_ino
