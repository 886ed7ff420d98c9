"""What an installed distribution holds: setuptools takes folders that are packages, and leaves the others out without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("top", ["pipeline", "workers", "trainer_client", "ops"])
def test_every_folder_with_files_is_a_package(top: str) -> None:
    """The sample repositories lay in a folder that was none: in a clone they were there, in a wheel they were not."""
    with_files = {path.parent for path in (ROOT / top).rglob("*.*") if path.is_file() and "__pycache__" not in path.parts}

    assert [str(folder.relative_to(ROOT)) for folder in sorted(with_files) if not (folder / "__init__.py").exists()] == []
