"""What a person may write for a source, and how names become files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import InvalidRequest
from workers.sandbox.images.names import source_of
from workers.sandbox.images.records import file_name_of


@pytest.mark.parametrize(
    ("text", "kind", "recorded"),
    [
        ("docker://python:3.11", "registry", "docker://python:3.11"),
        ("oras://host/x:1", "registry", "oras://host/x:1"),
        (
            "swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest",
            "registry",
            "docker://swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest",
        ),
        ("registry.example:5000/a/b:1", "registry", "docker://registry.example:5000/a/b:1"),
        ("oci-archive:/x/a.tar", "oci", "oci-archive:/x/a.tar"),
        ("oci-archive:/x/a.tar:v1", "oci", "oci-archive:/x/a.tar:v1"),
        ("oci:///x/layout", "oci", "oci:/x/layout"),
        ("sif:/x/a.sif", "sif", "sif:/x/a.sif"),
        ("folder:/x/root", "folder", "folder:/x/root"),
    ],
)
def test_a_source_is_understood_and_recorded_whole(text: str, kind: str, recorded: str) -> None:
    source = source_of(text)

    assert (source.kind, source.text) == (kind, recorded)


@pytest.mark.parametrize("text", ["", "-x", "a b", "a\nb", "ftp://x", "folder:", "a" * 2000, "x;rm -rf /", "$(reboot)", "\udcff"])
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        source_of(text)


def test_a_colon_in_a_path_that_is_there_is_no_reference(tmp_path: Path) -> None:
    file = tmp_path / "a:b.tar"
    file.touch()

    assert source_of(f"oci-archive:{file}").path == file
    assert source_of(f"oci-archive:{file}:v1").reference == "v1"


def test_names_become_files_that_stay_in_their_folder_and_apart() -> None:
    names = ["docker://a/b:1", "docker:/a/b:1", "../../etc/passwd", "..", ".", "x" * 1000, "x" * 999 + "y", "é", "a%2Fb", "a/b"]
    files = [file_name_of(name) for name in names]

    assert len(set(files)) == len(names)
    assert all("/" not in file and len(file) <= 255 and not file.startswith(".new-") for file in files)
