"""The scripted server as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.contract.llm.conftest import PROMPT, a_request
from workers.llm import connect_backend
from workers.llm.scripted.__main__ import build, parse
from workers.llm.tokenizer import load


async def _serve(*arguments: str) -> tuple[asyncio.subprocess.Process, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "workers.llm.scripted", *arguments, stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    assert process.stdout is not None
    async with asyncio.timeout(30):
        url = (await process.stdout.readline()).decode().strip()
    return process, url


@pytest.mark.parametrize("over", ["port", pytest.param("socket", marks=pytest.mark.slow)])
async def test_it_says_its_address_serves_and_ends_on_sigterm(tmp_path: Path, over: str) -> None:
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"about": "made for this test"}\n' + json.dumps({"question": "What is 3 + 4?", "answer": "7"}) + "\n")
    where = ["--socket", str(tmp_path / "llm.sock")] if over == "socket" else []
    process, url = await _serve("--problems", str(problems), "--all-right", "1", "--all-wrong", "0", "--tool-rate", "0", *where)
    try:
        async with connect_backend(url) as client:
            result = await client.generate(a_request(prompt_ids=PROMPT), timeout_s=10)
    finally:
        process.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(process.wait(), 10)

    assert "\\boxed{7}" in load().decode(result.output_ids)
    assert code == 0


@pytest.mark.slow
async def test_it_ends_with_the_process_that_started_it() -> None:
    reading, writing = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "workers.llm.scripted",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "ROLLSTREAM_PARENT_FD": str(reading)},
        pass_fds=(reading,),
    )
    os.close(reading)
    assert process.stdout is not None
    async with asyncio.timeout(30):
        assert (await process.stdout.readline()).startswith(b"http://127.0.0.1:")

    os.close(writing)

    assert await asyncio.wait_for(process.wait(), 10) == 0


def test_a_key_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k1\n")

    server = build(parse(["--api-key-file", str(tmp_path / "key"), "--wire", "0.33", "--per-token-ms", "2"]))

    assert server.options.api_key == "k1"
    assert "k1" not in repr(server.options)
    assert (server.options.wire, server.options.latency.per_token_s) == ("0.33", 0.002)
