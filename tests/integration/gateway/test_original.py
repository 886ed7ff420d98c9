"""What the original's trainers send is answered with the fields and codes that they read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pipeline.messages import Stage
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.gateway.service import PARAMS, Answer, Json, Service, gateway, instance, model, read_text, workers

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

    async def one(trajectory: int) -> Json:
        body = {"job_id": f"0123456789abcdef_{trajectory:08x}", "instance": instance(3, trajectory), "sampling_params": PARAMS}
        answer = await service.client.post("/process", body)
        assert answer.status == 200, answer.body
        return answer.body

    results = await asyncio.gather(*(one(trajectory) for trajectory in range(8)))

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
    counts = ["pending_jobs", "total", "jobs", *STAGES, *(f"{s}_queue" for s in STAGES), *(f"active_{s}" for s in STAGES)]
    assert [status.body[name] for name in counts] == [0] * len(counts)  # all have ended
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


async def process(service: Service, **more: object) -> Answer:
    """One call with the trainer's usual body."""
    return await service.client.post("/process", {"instance": instance(), "sampling_params": PARAMS, **more})


async def test_codes_and_sentences_before_a_job_is_made(service: Service) -> None:
    """Not running, no model server, no such task, a misspelt parameter, started twice; each says what to do."""
    not_running = await process(service)
    await service.client.post("/start")
    again = await service.client.post("/start")
    no_server = await process(service)
    await service.client.post("/add_llm_server", {"address": "http://127.0.0.1:1/v1/"})
    twice = await service.client.post("/add_llm_server", {"address": "http://127.0.0.1:1"})
    no_task = await process(service, instance=instance(data_source="deepscalar"))
    misspelt = await process(service, sampling_params={"temperatur": 0.5})
    no_number = await process(service, sampling_params={"temperature": "hot"})
    newer = await process(service, schema_version=2)
    unknown = await service.client.post("/cancel", {"job_id": "never/heard of"})

    assert [a.status for a in (not_running, again, no_server)] == [503, 400, 503]
    assert "POST /start" in not_running.body["detail"]
    assert "rollstream llm add --run gate" in no_server.body["detail"]
    assert twice.body == {"status": "there already: http://127.0.0.1:1", "address": "http://127.0.0.1:1"}
    assert (no_task.status, no_task.body["error"], no_task.body["field"]) == (400, "unknown_task", "instance.data_source")
    assert "did you mean 'deepscaler'?" in no_task.body["detail"]
    assert (misspelt.status, misspelt.body["field"]) == (422, "sampling_params.temperatur")
    assert "did you mean 'temperature'?" in misspelt.body["detail"]
    assert (no_number.status, no_number.body["field"]) == (422, "sampling.temperature")
    assert (newer.status, newer.body["error"]) == (422, "newer_schema")
    assert (unknown.status, unknown.body["state"], unknown.body["cancelled"]) == (200, "unknown", False)


async def test_one_id_is_one_job_and_stop_ends_it(service: Service) -> None:
    """Two calls under one id wait for one job; another request under it is refused; `/stop` cancels it and both calls are told."""
    await begin(service, "http://127.0.0.1:1")
    waiting = [asyncio.create_task(process(service, job_id="any text/at all")) for _ in range(2)]

    async def pending() -> bool:
        status = (await service.client.get("/status")).body
        return (status["pending_jobs"], status["jobs"]) == (2, 1)

    await wait_until(pending, "two calls wait for one job")
    other = await process(service, job_id="any text/at all", instance=instance(2))
    stopped = await service.client.post("/stop")
    answers = await asyncio.gather(*waiting)

    assert (other.status, other.body["error"]) == (409, "id_taken")
    assert list(stopped.body["cancelled"].values()) == ["settled"]
    assert [(answer.status, answer.body["error"]) for answer in answers] == [(500, "stopped")] * 2
    assert (await service.client.get("/status")).status == 503


async def test_a_job_that_waits_too_long_is_a_504_and_one_that_breaks_says_where(queue: QueueSettings, tmp_path: Path) -> None:
    """The wall limit holds with a janitor that ends the job, and without anybody; a row that is no problem breaks in INIT."""
    (tmp_path / "r.json").write_text('{"*": {"wall_s": 0.3, "max_failed": 0}, "stem": {"wall_s": 60}}')
    async with gateway(queue, tmp_path, requests_file=tmp_path / "r.json") as service:
        await begin(service, "http://127.0.0.1:1")
        nobody = await process(service)
        async with workers(queue, tmp_path, stages=(Stage.INIT,)):
            no_run = await process(service)
            broken = await process(service, instance={"data_source": "stem", "instance_id": "x", "trajectory_id": "t0", "weather": "rain"})

    assert (nobody.status, nobody.body["error"]) == (504, "timeout")
    assert "No worker of stage INIT is alive" in nobody.body["detail"]
    assert no_run.status == 504
    assert broken.status == 200
    assert (broken.body["critical_error"], broken.body["filter"], broken.body["success"], broken.body["messages"]) == (
        "init",
        True,
        False,
        [],
    )
    assert (broken.body["instance_id"], broken.body["trajectory_id"]) == ("x", "t0")
    assert "weather" in broken.body["error"]
    assert "weather" in broken.body["traceback"]


async def test_a_limit_of_the_model_is_no_critical_error_and_what_has_no_effect_is_said(service: Service, fleet: str) -> None:
    await begin(service, fleet)
    params = {**PARAMS, "max_output_tokens": 1, "top_p": 0.9, "token_level_generation": False}

    cut = (await process(service, sampling_params=params, return_tokens=True)).body

    assert (cut["critical_error"], cut["success"], cut["filter"], cut["finish"], cut["end_properly"]) == (None, False, True, False, False)
    assert cut["error"].startswith("limit or fault of the model")
    assert cut["not_used"].keys() >= {"api_key", "model", "custom_tokenizer"}
    assert "dummy_key" not in str(cut)
    assert any("top_p" in warning for warning in cut["warnings"])
    assert all(set(message) == {"role", "content"} for message in cut["messages"])
    (segment,) = cut["segments"]
    assert sum(segment["sampled_mask"]) == cut["sampled_tokens"] == 1
    assert [logprob is not None for logprob in segment["logprobs"]] == [bool(bit) for bit in segment["sampled_mask"]]


async def test_two_hundred_calls_at_once(queue: QueueSettings, tmp_path: Path) -> None:
    async with model(tmp_path) as server, workers(queue, tmp_path, slots=64), gateway(queue, tmp_path) as service:
        await begin(service, server.url)

        answers = await asyncio.gather(
            *(
                service.client.post(
                    "/process", {"instance": instance(number % 8, number), "sampling_params": PARAMS, "job_id": f"j-{number}"}
                )
                for number in range(200)
            )
        )
        metrics = await read_text(service, "/metrics")

    assert {answer.status for answer in answers} == {200}
    assert [answer.body["trajectory_id"] for answer in answers] == list(range(200))
    assert {(answer.body["outcome"], answer.body["reason"]) for answer in answers} == {("ok", "")}
    assert all(row_of_trainer(answer.body) for answer in answers)
    assert 'rollstream_gateway_requests_total{code="200",method="POST",route="/process"} 200.0' in metrics
    assert 'rollstream_gateway_now{what="jobs_open"} 0.0' in metrics
