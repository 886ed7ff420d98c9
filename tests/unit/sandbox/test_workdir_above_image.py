"""The working folder that is made above an image from outside: only where nothing of its path is there, and never beside the layer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workers.sandbox.local.folder import make_workdir


@pytest.fixture
def layers(tmp_path: Path) -> tuple[Path, Path]:
    """An image and the layer above it."""
    image, upper = tmp_path / "image", tmp_path / "layers" / "upper"
    (image / "srv").mkdir(parents=True)
    (image / "away").symlink_to("/srv")
    upper.mkdir(parents=True)
    return image, upper


def made(upper: Path) -> set[str]:
    """All that stands in the layer or beside it."""
    root = upper.parent.parent / "layers"
    return {str(path.relative_to(root)) for path in root.rglob("*")} - {"upper"}


@pytest.mark.parametrize("workdir", ["/workspace", "/work/of/agent/"])
def test_a_path_that_the_image_has_nothing_of_is_made(layers: tuple[Path, Path], workdir: str) -> None:
    image, upper = layers
    make_workdir(image, upper, workdir)
    folder = upper / workdir.strip("/")
    assert folder.is_dir()
    assert os.stat(folder).st_mode & 0o777 == 0o755


@pytest.mark.parametrize("workdir", ["/", "", "/srv/repo", "/away/repo", "/a/../../../b", "/a/../../b", "/./a", "/a//b", "../b"])
def test_any_other_path_is_left_to_the_inside(layers: tuple[Path, Path], workdir: str) -> None:
    image, upper = layers
    make_workdir(image, upper, workdir)
    assert made(upper) == set()
