"""Layouts and archives: which image is meant, and that no byte is used that is not the one its digest names."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.image_files import MACHINE, a_file, a_layer, a_layout, add_blob, an_archive, write_index
from workers.sandbox.images.entries import BadArchive
from workers.sandbox.images.oci import OciArchive
from workers.sandbox.images.tree_writer import Bounds, TreeWriter

BOUNDS = Bounds(max_bytes=1 << 20, max_entries=1000)
LAYER = a_layer(a_file("hello", b"hi"))


def unpack(path: Path, root: Path, reference: str = "", bounds: Bounds = BOUNDS) -> None:
    archive = OciArchive.at(path)
    root.mkdir()
    for blob in archive.image(reference).layers:
        with archive.layer(blob, bounds) as entries:
            TreeWriter(root, bounds).apply(entries)


@pytest.mark.parametrize("is_compressed", [True, False])
def test_a_layout_and_an_archive_of_it_are_the_same_image(tmp_path: Path, is_compressed: bool) -> None:
    layout = a_layout(
        tmp_path / "l", LAYER, a_layer(a_file("more", b"2")), env=["PATH=/x", "A=b=c", "bad"], workdir="/w", is_compressed=is_compressed
    )
    archive = an_archive(tmp_path / "l.tar", layout)

    unpack(layout, tmp_path / "one")
    unpack(archive, tmp_path / "two")

    assert OciArchive.at(layout).image() == OciArchive.at(archive).image()
    assert (tmp_path / "one/hello").read_bytes() == (tmp_path / "two/hello").read_bytes() == b"hi"
    assert (tmp_path / "two/more").read_bytes() == b"2"
    image = OciArchive.at(archive).image()
    assert (dict(image.env), image.workdir) == ({"PATH": "/x", "A": "b=c"}, "/w")


def test_a_layer_compressed_by_zstd_is_read(tmp_path: Path) -> None:
    if shutil.which("zstd") is None:
        pytest.skip("zstd is not installed")
    packed = subprocess.run(["zstd", "-qc"], input=LAYER, capture_output=True, check=True).stdout

    unpack(a_layout(tmp_path / "l", packed, is_compressed=False), tmp_path / "out")
    with pytest.raises(BadArchive):
        unpack(a_layout(tmp_path / "cut", packed[:-20], is_compressed=False), tmp_path / "out2")

    assert (tmp_path / "out/hello").read_bytes() == b"hi"


def test_the_image_of_this_kind_of_machine_is_chosen_also_in_an_index_of_an_index(tmp_path: Path) -> None:
    layout = a_layout(tmp_path / "l", LAYER)
    ours = json.loads((layout / "index.json").read_text())["manifests"][0]
    other = {**add_blob(layout, b"{}"), "platform": {"os": "linux", "architecture": "alien"}}
    inner = add_blob(layout, json.dumps({"manifests": [other, ours]}).encode())
    write_index(layout, {**inner, "mediaType": "application/vnd.oci.image.index.v1+json"})

    assert OciArchive.at(layout).image().digest == ours["digest"].removeprefix("sha256:")


def test_of_several_images_one_must_be_named(tmp_path: Path) -> None:
    layout = a_layout(tmp_path / "l", LAYER, name="first")
    first = json.loads((layout / "index.json").read_text())["manifests"][0]
    manifest = add_blob(layout, (layout / "blobs/sha256" / first["digest"][7:]).read_bytes() + b" ")
    write_index(layout, first, {**manifest, "annotations": {"org.opencontainers.image.ref.name": "second"}})

    assert OciArchive.at(layout).image("second").digest == str(manifest["digest"])[7:]
    with pytest.raises(BadArchive, match=r"first.*second"):
        OciArchive.at(layout).image()
    with pytest.raises(BadArchive, match="no image 'third' in it, but first, second"):
        OciArchive.at(layout).image("third")


def test_an_image_for_another_machine_is_refused_by_name(tmp_path: Path) -> None:
    layout = a_layout(tmp_path / "l", LAYER)
    entry = json.loads((layout / "index.json").read_text())["manifests"][0]
    write_index(layout, {**entry, "platform": {"os": "linux", "architecture": "alien"}})

    with pytest.raises(BadArchive, match=f"{MACHINE} was expected, it has: .*linux/alien"):
        OciArchive.at(layout).image()


def test_a_blob_that_was_changed_is_not_used(tmp_path: Path) -> None:
    for number, pick in enumerate((max, min)):  # the manifest and its configuration are the smallest, the layer the largest
        layout = a_layout(tmp_path / f"l{number}", a_layer(a_file("hello", bytes(range(256)) * 40)), is_compressed=False)
        blob = pick((layout / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
        content = bytearray(blob.read_bytes())
        content[len(content) // 2] ^= 1
        blob.write_bytes(content)

        with pytest.raises(BadArchive, match="damaged"):
            unpack(layout, tmp_path / f"out{number}")


@pytest.mark.parametrize("part", ["index.json", "oci-layout", "blobs/sha256"])
def test_a_layout_with_a_part_missing_says_which(tmp_path: Path, part: str) -> None:
    layout = a_layout(tmp_path / "l", LAYER)
    shutil.rmtree(layout / part) if (layout / part).is_dir() else (layout / part).unlink()

    with pytest.raises(BadArchive, match=f"{part}.* is not in it"):
        unpack(layout, tmp_path / "out")


def test_an_archive_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    archive = an_archive(tmp_path / "a.tar", a_layout(tmp_path / "l", a_layer(a_file("x", bytes(100_000))), is_compressed=False))
    whole = archive.read_bytes()
    for share in (0.1, 0.5, 0.9):
        archive.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(BadArchive):
            unpack(archive, tmp_path / f"out{share}")


def test_a_layer_that_decompresses_to_far_more_than_an_image_may_have_is_ended(tmp_path: Path) -> None:
    """200 MB of zeros in 200 KB, after the end of the archive or as content: neither fills memory or disk."""
    bounds = Bounds(max_bytes=1 << 20, max_entries=10)
    content = a_layout(tmp_path / "content", a_layer(a_file("bomb", bytes(50_000_000))))
    noise = a_layout(tmp_path / "headers", b"".join(a_layer(a_file(f"{i}", bytes(512)))[:1024] for i in range(3000)))

    with pytest.raises(BadArchive, match="unpacked"):
        unpack(content, tmp_path / "out1", bounds=bounds)
    with pytest.raises(BadArchive, match="entries"):
        unpack(noise, tmp_path / "out2", bounds=bounds)


@pytest.mark.parametrize(
    "document",
    [b"[]", b"{", b'{"manifests": {}}', b'{"manifests": [1]}', b'{"manifests": [{"digest": "md5:x", "size": 1}]}', b"[" * 100_000],
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, document: bytes) -> None:
    layout = a_layout(tmp_path / "l", LAYER)
    (layout / "index.json").write_bytes(document)

    with pytest.raises(BadArchive):
        OciArchive.at(layout).image()
