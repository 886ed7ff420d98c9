"""`examples/train_tiny` runs: without torch it says what to install, with it it trains, stops and goes on.

That it learns takes a quarter of an hour, and is for people to see; here a few steps are taken of a checkpoint that is hardly taught.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VARIABLE = "ROLLSTREAM_TORCH_PYTHON"
SMALL = ("--supervised-steps", "150", "--groups", "2", "--n", "4", "--slots", "8", "--held-out-tasks", "10", "--measure-every", "100")


def train(python: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, as a person runs it from the folder of the project."""
    command = [python, "-m", "examples.train_tiny", "train", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed here")
def test_without_torch_it_says_what_to_install(tmp_path: Path) -> None:
    done = train(sys.executable, "--out", str(tmp_path))

    assert done.returncode == 2
    assert "pip install 'rollstream[train-tiny]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(1700)
@pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no Python with torch")
def test_it_takes_steps_and_goes_on_where_it_was(tmp_path: Path) -> None:
    python = os.environ[VARIABLE]

    first = train(python, "--out", str(tmp_path), "--steps", "2", *SMALL)
    second = train(python, "--out", str(tmp_path), "--steps", "4", *SMALL)

    assert first.returncode == 0, first.stdout + first.stderr
    assert second.returncode == 0, second.stdout + second.stderr
    with (tmp_path / "curves.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert [row["held_out_tasks"] for row in rows] == ["10", "0", "10", "0", "10"]
    tokens = [int(row["tokens"]) for row in rows]
    assert tokens == sorted(set(tokens)), "each step adds its own to those before the stop"
    assert float(rows[1]["behaviour_ratio"]) == pytest.approx(1.0, abs=0.01), "server and trainer agree on the weights that both have"
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    assert "supervised" in first.stdout
    assert "supervised" not in second.stdout, "the checkpoint is there"
