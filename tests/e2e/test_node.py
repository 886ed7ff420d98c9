"""`ops/launch node` and `down`, as a person on one machine uses them."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from pipeline.testing import wait_in_thread
from tests.e2e.conftest import ROOT, Command
from tests.e2e.test_demo import processes_of

START_S = 90.0
NAME = socket.gethostname().split(".")[0]
"""Of a node to which nobody gave one."""


@pytest.mark.timeout(300)
def test_a_node_of_one_machine_runs_until_down(command: Command, environment: dict[str, str], home: Path) -> None:
    """On the embedded server, which goes with it."""
    environment["ROLLSTREAM_SANDBOX_BACKEND"] = "process"
    log = home / "launcher.log"
    with log.open("wb") as out:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "ops.cli", "node", "run", "--init", "1", "--run", "2", "--eval", "1"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        wait_in_thread(lambda: b"node_up" in log.read_bytes(), "the node is up", timeout_s=START_S)

        listed = command("ops.cli", "node", "list")
        assert listed.returncode == 0, listed.stderr
        assert re.search(rf"{re.escape(NAME)} +up +1 +2 +1 +- +process", listed.stdout), listed.stdout
        scaled = command("ops.cli", "node", "scale", NAME, "run=3")
        assert (scaled.returncode, f"{NAME} was asked: run=3" in scaled.stdout) == (0, True)
        wait_in_thread(lambda: b"process=run-1" in log.read_bytes(), "another RUN worker was started", timeout_s=START_S)
        wrong = command("ops.cli", "node", "scale", NAME, "gpu=3")
        assert (wrong.returncode, "expected init=SIZE, run=SIZE or eval=SIZE" in wrong.stderr) == (2, True)
        shown = orjson.loads(command("ops.cli", "node", "show", NAME, "--json").stdout)
        assert {each["name"] for each in shown["processes"]} == {"sandboxes", "init-0", "run-0", "run-1", "eval-0", "supervisor"}

        down = command("ops.node.down")

        assert (down.returncode, down.stdout) == (0, f"{NAME}: ended\nno demo is up\n")
        assert launcher.wait(30) == 0
    finally:
        launcher.kill()
        launcher.wait()
    wait_in_thread(lambda: not processes_of(home), "nothing is left, the server neither", timeout_s=30)
    gone = command("ops.cli", "node", "drain", NAME)
    assert (gone.returncode, f"no launcher runs node {NAME}, which is ended" in gone.stderr) == (1, True)


def test_a_node_installs_nothing_and_says_what_to_run(tmp_path: Path) -> None:
    """A clone without an environment: on a hundred machines it would be made a hundred times."""
    shutil.copytree(ROOT / "ops/launcher", tmp_path / "ops/launcher", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "ops/launch", tmp_path / "ops/launch")
    shutil.copy2(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    (tmp_path / "ops/__init__.py").touch()

    done = subprocess.run(
        [tmp_path / "ops/launch", "node", "--run", "4"],
        env={"PATH": os.environ["PATH"], "ROLLSTREAM_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 2
    assert "There is no environment" in done.stderr
    assert "./ops/launch setup" in done.stderr
    assert not (tmp_path / ".venv").exists()
