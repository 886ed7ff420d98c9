"""Clients that know nothing but the documented routes and fields: `curl`, and the standard library of Python."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from pipeline.settings import QueueSettings
from tests.integration.gateway.service import gateway, model, workers
from tests.secret_words import a_secret

pytestmark = pytest.mark.one_server

CURL = shutil.which("curl")
TOKEN = a_secret("trainer")
ROW = {
    "data_source": "deepscaler",
    "instance_id": "m1",
    "trajectory_id": 0,
    "prompt": [{"role": "user", "content": "What is 1 + 1?"}],
    "reward_model": {"ground_truth": "2"},
}
SAMPLING = {"temperature": 1.0, "max_output_tokens": 256, "max_iterations": 4, "token_level_generation": True}


async def curl(*words: str) -> tuple[int, Any]:  # Any: JSON
    """Status and body of one call."""
    process = await asyncio.create_subprocess_exec(
        str(CURL), "-s", "-w", "\n%{http_code}", "-H", "Content-Type: application/json", *words, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    body, _, code = out.decode().rpartition("\n")
    return int(code), json.loads(body)


class Trainer:
    """What a trainer in plain Python needs: one function, with its token in the address' user part."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.headers = {"Authorization": "Basic " + base64.b64encode(f"trainer:{token}".encode()).decode()}

    def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {**self.headers, **({"Content-Type": "application/json"} if data else {})}
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def train(self, model_url: str) -> dict[str, Any]:
        """A whole visit: servers, start, a blocking rollout, a job of our own with its tokens, stop."""
        seen: dict[str, Any] = {
            "servers": self.call("POST", "/add_llm_server", {"address": model_url}),
            "start": self.call("POST", "/start"),
        }
        seen["process"] = self.call("POST", "/process", {"instance": ROW, "sampling_params": SAMPLING})
        job = {"id": "mine", "task": "math", "prompt": {"question": "What is 2 + 2?", "answer": "4"}, "options": {"tools": False}}
        seen["submit"] = self.call("POST", "/jobs", job)
        seen["wait"] = self.call("GET", "/jobs/mine?wait_s=20")
        seen["trajectory"] = self.call("GET", seen["wait"][1]["trajectory_at"])
        seen["let go"] = self.call("DELETE", "/jobs/mine")
        seen["wrong"] = self.call("POST", "/process", {"instance": {**ROW, "data_source": "maths"}, "sampling_params": {}})
        seen["stop"] = self.call("POST", "/stop")
        return seen


@pytest.mark.skipif(CURL is None, reason="no curl")
async def test_curl_runs_a_rollout(queue: QueueSettings, tmp_path: Path) -> None:
    async with model(tmp_path) as server, workers(queue, tmp_path), gateway(queue, tmp_path) as service:
        url = service.url
        added = await curl("-d", json.dumps({"address": server.url}), f"{url}/add_llm_server")
        started = await curl("-X", "POST", f"{url}/start")
        result = await curl("-d", json.dumps({"instance": ROW, "sampling_params": SAMPLING, "job_id": "a/b"}), f"{url}/process")
        cancelled = await curl("-d", '{"job_id": "a/b"}', f"{url}/cancel")
        status = await curl(f"{url}/status")
        stopped = await curl("-X", "POST", f"{url}/stop")

    assert [code for code, _ in (added, started, result, cancelled, status, stopped)] == [200] * 6
    assert (result[1]["success"], result[1]["instance_id"], result[1]["job_id"]) == (True, "m1", "a/b")
    assert sum(len(message["token_ids"]) for message in result[1]["messages"]) == result[1]["total_tokens"] - trailing(result[1])
    assert cancelled[1]["state"] == "done"
    assert status[1]["status"] == "running"


def trailing(result: dict[str, Any]) -> int:
    """Tokens that the template wrote after the last turn: nothing was sampled after them."""
    return int(result["total_tokens"]) - sum(len(message["token_ids"]) for message in result["messages"])


async def test_the_standard_library_trains(queue: QueueSettings, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    async with model(tmp_path) as server, workers(queue, tmp_path), gateway(queue, tmp_path, trainer_token_file=token) as service:
        seen = await asyncio.to_thread(Trainer(service.url, TOKEN).train, server.url)
        stranger = await asyncio.to_thread(Trainer(service.url, "guess-0123456789abcdef").call, "GET", "/steps")

    assert {name: code for name, (code, _) in seen.items()} == {
        **dict.fromkeys(("servers", "start", "process", "wait", "trajectory", "let go", "stop"), 200),
        "submit": 202,
        "wrong": 400,
    }
    assert seen["process"][1]["success"]
    (segment,) = seen["trajectory"][1]["trajectory"]["segments"]
    assert len(segment["token_ids"]) == len(segment["logprobs"]) == len(segment["loss_mask"])
    assert "did you mean 'math'?" in seen["wrong"][1]["detail"]
    assert (stranger[0], stranger[1]["error"]) == (401, "wrong_token")
