"""The stores of `tests/integration/images`, with a real system as a base and the real programs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.integration.images.conftest import image, store
from workers.sandbox.images import ImageStore

__all__ = ["image", "store"]

REQUIRED = set(filter(None, os.environ.get("ROLLSTREAM_REQUIRE_BACKENDS", "").split(",")))


@pytest.fixture(scope="session")
def based(system: Path, tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    """A store that knows a small Debian as `base`: brought once, since it has 400 MB."""
    folder = tmp_path_factory.mktemp("based")
    store = ImageStore(folder / "shared", folder / "node")
    store.node.open()
    store.pull("base", f"folder:{system}")
    return store


@pytest.fixture(scope="session")
def system() -> Path:
    """A folder with the files of a small Debian."""
    folder = os.environ.get("ROLLSTREAM_TEST_IMAGE", "")
    if not folder and REQUIRED:
        pytest.fail("ROLLSTREAM_REQUIRE_BACKENDS is set, and ROLLSTREAM_TEST_IMAGE is not")
    if not folder:
        pytest.skip("ROLLSTREAM_TEST_IMAGE names no folder with the files of a system")
    return Path(folder)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path, for sockets."""
    with TemporaryDirectory(prefix="i-") as folder:
        yield Path(folder)


@pytest.fixture
def apptainer() -> str:
    """The real program."""
    found = shutil.which("apptainer") or shutil.which("singularity")
    if found is None and "apptainer" in REQUIRED:
        pytest.fail("ROLLSTREAM_REQUIRE_BACKENDS asks for Apptainer, which is not on the path")
    if found is None:
        pytest.skip("Apptainer is not installed")
    return found
