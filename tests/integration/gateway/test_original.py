"""What the original's trainers send is answered with the fields and codes that they read."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.gateway.service import PARAMS, Json, Service, instance

pytestmark = pytest.mark.one_server

FIELDS = {
    *("messages", "tools", "end_properly", "success", "error", "finish", "git_patch", "resolved", "critical_error"),
    *("instance_id", "trajectory_id", "traceback", "filter", "timing"),
}
STAGES = ("init", "run", "eval")
TIMES = {"init_time", "run_time", "eval_time", "others_time", "counted_elapsed", "timeout_triggered"}


async def begin(service: Service, address: str) -> None:
    """As the trainer does once, and before each step."""
    assert (await service.client.post("/clear_llm_server")).status == 200
    assert (await service.client.post("/add_llm_server", {"address": address})).status == 200
    assert (await service.client.post("/start")).status == 200


async def test_a_step_of_the_original_s_trainer(service: Service, fleet: str) -> None:
    """Clear, add, start, many processes, status, stop: the life of its servers in one training step."""
    await begin(service, fleet)

    async def process(trajectory: int) -> Json:
        body = {"job_id": f"0123456789abcdef_{trajectory:08x}", "instance": instance(3, trajectory), "sampling_params": PARAMS}
        answer = await service.client.post("/process", body)
        assert answer.status == 200, answer.body
        return answer.body

    results = await asyncio.gather(*(process(trajectory) for trajectory in range(8)))

    for trajectory, result in enumerate(results):
        assert set(result) >= FIELDS
        assert set(result["timing"]) == TIMES
        assert (result["instance_id"], result["trajectory_id"]) == ("m3", trajectory)
        assert (result["critical_error"], result["traceback"], result["error"]) == (None, None, None)
        assert (result["success"], result["filter"], result["finish"]) == (True, False, True)
        assert result["resolved"] == (result["reward"] == 1.0)
        assert row_of_trainer(result)
    status = await service.client.get("/status")
    assert set(status.body) >= {"status", "pending_jobs", "total", *(f"{s}_queue" for s in STAGES), *(f"active_{s}" for s in STAGES)}
    assert set(status.body) >= {"running", "jobs", *STAGES}
    assert (await service.client.post("/stop")).status == 200
    assert (await service.client.get("/status")).status == 503


def row_of_trainer(result: Json) -> tuple[list[int], list[int], list[float]]:
    """Ids, mask and logprobs as the original's trainer makes them of the messages of a result."""
    messages = result["messages"]
    assert messages[-1]["role"] == "assistant"
    ids, mask, logprobs = list[int](), list[int](), list[float]()
    for message in messages:
        n = len(message["token_ids"])
        ids += message["token_ids"]
        mask += [int(message["role"] == "assistant")] * n
        logprobs += message["logprobs"] if message["logprobs"] is not None else [0.0] * n
    assert len(ids) == len(mask) == len(logprobs)
    assert sum(mask) == result["sampled_tokens"]
    return ids, mask, logprobs
