"""Real vLLM servers for tests, started as a person starts them: `rollstream llm serve` on a tiny model, on the CPU.

They are there when `ROLLSTREAM_VLLM_PYTHON` names the Python of an environment with vLLM. A server takes half a minute and 2 GB, so a
session starts each once and its tests share it; whoever pauses or labels it puts that back.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops.child_processes import log_tail

VARIABLE = "ROLLSTREAM_VLLM_PYTHON"
CONTEXT = 8192
START_TIMEOUT_S = 240
"""Cold, on two busy cores, a start has been seen to take 70 s."""
REAL = (pytest.mark.vllm, pytest.mark.timeout(START_TIMEOUT_S + 60))
"""Marks of a test that may be the first to need a server."""


@dataclass(frozen=True, slots=True)
class VllmServer:
    """One that serves."""

    url: str
    model: str
    folder: Path
    """Of its model: seed 0."""
    other_weights: Path
    """Folder of other weights for it: seed 1."""


def skip_without_vllm() -> None:
    """Ends a test that has no server to run on."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"needs a real vLLM: {VARIABLE} names the Python that has it (docs/how-to/run-vllm.md)")
    if os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.skip("real servers are shared by the tests of one process: pytest -m vllm, without -n")


@contextlib.contextmanager
def serving(folder: Path, *arguments: str, template: str = "qwen") -> Iterator[VllmServer]:
    """A server of a tiny model in a folder of its own, until the block ends."""
    skip_without_vllm()
    model, other, log = folder / "tiny", folder / "tiny-other", folder / "serve.log"
    command = [sys.executable, "-m", "ops.cli", "llm"]
    for seed, target in enumerate((model, other)):
        tiny = ["tiny", str(target), "--max-model-len", str(CONTEXT), "--seed", str(seed), "--template", template]
        subprocess.run([*command, *tiny], check=True, capture_output=True)
    serve = [*command, "serve", "--model", str(model), "--cpu", "--cpu-threads", "1", "--scripted", "--json", *arguments]
    serve += ["--start-timeout-s", str(START_TIMEOUT_S), "--grace-s", "5"]
    with log.open("wb") as out:
        process = subprocess.Popen(serve, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()  # ends with the process, at the latest after the start's own time limit
        if not said:
            pytest.fail(f"the server did not start:\n{log_tail(log)}")
        told = json.loads(said)
        yield VllmServer(url=told["url"], model=told["model"], folder=model, other_weights=other)
    finally:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()
