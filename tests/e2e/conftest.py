"""End to end: the installed commands, as a user runs them, in folders of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).resolve().parents[2]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home() -> Iterator[Path]:
    """Folders of a new user; short, since sockets live below."""
    with TemporaryDirectory(prefix="e2e-") as folder:
        yield Path(folder)


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    """What a new user's processes see."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    folders = {f"ROLLSTREAM_{name.upper()}_DIR": str(home / name) for name in ("run", "data", "scratch", "state")}
    return {**kept, **folders, "HOME": str(home), "COLUMNS": "100"}


@pytest.fixture
def command(environment: dict[str, str]) -> Command:
    """Runs `python -m MODULE ARGUMENTS` as that user."""

    def run(module: str, *arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    return run
