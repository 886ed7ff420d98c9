"""A sandbox without an image has the node's programs, wherever they lie on the node."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.sandbox.kinds import usable

PROJECT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["bubblewrap", "apptainer"])
def test_a_python_that_lies_below_tmp_on_the_node_is_there(name: str, place: Path) -> None:
    """Where the project is cloned below /tmp, as in many a CI, the sandbox's own /tmp must not hide the worker's environment."""
    usable(name)
    venv = place / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=30)
    packages = next(venv.glob("lib/python*/site-packages"))
    (packages / "marker.py").write_text("here = True\n")
    (packages / "rest.pth").write_text("\n".join([str(PROJECT), *(path for path in sys.path if path.endswith("site-packages"))]))
    program = [str(venv / "bin/python"), "-m", "tests.contract.sandbox.node_program", name, str(place / "sandboxes")]

    done = subprocess.run(program, cwd=PROJECT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50, check=False)

    assert done.returncode == 0, done.stderr
    found = [line.removeprefix("found: ") for line in done.stdout.splitlines() if line.startswith("found: ")]
    assert found == [f"{venv} {packages}/marker.py", "Read-only file system", f"{venv} {packages}/marker.py"]
    assert packages.is_dir()
