"""From a clone to jobs on a Redis of its own, by the five commands of docs/how-to/separate-redis.md."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.testing import wait_in_thread
from tests.e2e.conftest import ROOT, Command
from tests.e2e.documents import blocks

START_S = 90.0
PAGE = ROOT / "docs/how-to/separate-redis.md"


@pytest.mark.timeout(300)
def test_the_five_commands_of_the_page_lead_to_jobs_and_a_healthy_status(command: Command, environment: dict[str, str], home: Path) -> None:
    """This environment stands in for what `setup` makes; a free port for 6379, where somebody else may be."""
    setup, *lines = next(blocks(PAGE)).text.splitlines()
    assert setup == "./ops/launch setup"
    assert len(lines) == 4
    redis, node, jobs, status = (shlex.split(line.replace("./ops/launch node", ".venv/bin/rollstream node run"))[1:] for line in lines)
    environment["ROLLSTREAM_SANDBOX_BACKEND"] = "process"  # who runs the tests may be root, which walls refuse

    with ExitStack() as stack:

        def start(name: str, words: list[str]) -> Path:
            log = home / f"{name}.log"
            out = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", "ops.cli", *words], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
            stack.callback(_end, process)
            return log

        def says(log: Path, word: bytes) -> None:
            wait_in_thread(lambda: word in log.read_bytes(), f"{log.name} says {word!r}", timeout_s=START_S)

        served = start("redis", [*redis, "--port", "0"])
        says(served, b"users: ")
        (exported,) = re.findall(r"^ +export (.*)$", served.read_text(encoding="utf-8"), re.MULTILINE)
        environment.update(dict(word.split("=", 1) for word in shlex.split(exported)))
        up = start("node", [*node, "--init", "1", "--run", "2", "--eval", "1"])
        says(up, b"node_up")

        done = command("ops.cli", *jobs[:-1], "4", "--out", str(home / "results.jsonl"))
        looked = command("ops.cli", *status)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of 4 samples valid" in done.stdout, done.stdout
    assert (looked.returncode, looked.stdout.split(" ")[0]) == (0, "healthy"), looked.stdout + looked.stderr


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(START_S)
    finally:
        process.kill()
        process.wait()
