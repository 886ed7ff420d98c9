"""Jobs over HTTP: one id is one job, a wait ends with its result, what came is the record bit for bit, and it goes when it is let go."""

from __future__ import annotations

import math
from pathlib import Path

import msgpack
import numpy as np
import pytest

from pipeline.codec import decode
from pipeline.keys import Keys
from pipeline.messages import Trajectory
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.gateway.service import RUN, Json, Service, model, question, workers
from tests.integration.trainer_client.pump import Pump, pumping, trajectory_of

pytestmark = pytest.mark.one_server


def a_job(**more: object) -> Json:
    return {"task": "math", "prompt": {"question": question(1), "answer": "2"}, "options": {"tools": False}, **more}


async def test_a_job_is_submitted_twice_waited_for_fetched_and_let_go(
    service: Service, scripts: Scripts, client: AsyncClient, keys: Keys
) -> None:
    first = await service.client.post("/jobs", a_job(id="j-1"))
    again = await service.client.post("/jobs", a_job(id="j-1"))
    other = await service.client.post("/jobs", a_job(id="j-1", priority=3))
    early = await service.client.get("/jobs/j-1/trajectory")
    waiting = await service.client.get("/jobs/j-1", params={"wait_s": "0.05"})

    async with pumping(Pump(scripts)):
        done = await service.client.get(f"/jobs/{RUN}.j-1", params={"wait_s": "20"})
    as_json = await service.client.get("/jobs/j-1/trajectory")
    async with service.client.session.get(service.url + "/jobs/j-1/trajectory", headers={"Accept": "application/msgpack"}) as response:
        kind, packed = response.content_type, msgpack.unpackb(await response.read())
    record = await ask(client, "HGETALL", keys.job(f"{RUN}.j-1"))
    let_go = await service.client.call("DELETE", "/jobs/j-1")
    gone = [await service.client.get("/jobs/j-1"), await service.client.post("/jobs", a_job(id="j-1"))]

    assert (first.status, first.headers["Location"], first.body["status_at"]) == (202, "/jobs/j-1", "/jobs/j-1")
    assert (again.status, again.body) == (202, first.body)
    assert (other.status, other.body["error"], early.status, early.body["error"]) == (409, "id_taken", 409, "not_done")
    assert (waiting.body["state"], waiting.body["result"]) == ("ready", None)
    assert any("No worker of stage INIT is alive" in why for why in waiting.body["why_waiting"])
    assert (done.body["state"], done.body["id"], done.body["result"]["reward"]) == ("done", "j-1", 1.0)
    assert [moment["what"] for moment in done.body["timeline"]] == ["accepted", "INIT began", "RUN began", "EVAL began", "ended"]
    assert record[b"st"] == b"done"

    made = trajectory_of(f"{RUN}.j-1").segments[0]
    (listed,), (raw,) = as_json.body["trajectory"]["segments"], packed["trajectory"]["segments"]
    assert listed["token_ids"] == made.token_ids.tolist()
    assert [math.isnan(float(lp)) for lp in made.logprobs] == [lp is None for lp in listed["logprobs"]]
    assert kind == "application/msgpack"
    for name in ("token_ids", "sampled_mask", "loss_mask", "logprobs"):
        array = np.frombuffer(raw[name]["data"], raw[name]["dtype"])
        assert array.tobytes() == getattr(made, name).tobytes(), name
        assert raw[name]["shape"] == [len(made.token_ids)]
    assert as_json.body["grade"]["reward"] == packed["grade"]["reward"] == 1.0

    assert (let_go.status, let_go.body["state"]) == (200, "let_go")
    assert [(one.status, one.body["error"]) for one in gone] == [(404, "no_such_job"), (410, "gone")]
    assert await ask(client, "XLEN", keys.results(RUN)) == 0


async def test_many_at_once_a_cancel_and_wrong_requests(service: Service) -> None:
    many = await service.client.post("/jobs", {"jobs": [a_job(id=f"m-{number}") for number in range(40)]})
    settled = await service.client.call("DELETE", "/jobs/m-3")
    values = {"question": "x", "values": list(range(60_000))}
    large = await service.client.post("/jobs", a_job(id="large", prompt=values))
    wrong = [
        await service.client.post("/jobs", a_job(prompt={**values, "too_big": 1, "values": [2**70]})),
        await service.client.post("/jobs", {"jobs": []}),
        await service.client.post("/jobs", {"jobs": [a_job()] * 257}),
        await service.client.post("/jobs", a_job(task="chess")),
        await service.client.post("/jobs", a_job(tsak="math")),
        await service.client.post("/jobs", a_job(prompt={})),
        await service.client.post("/jobs", a_job(sampling={"temperature": "8"})),
        await service.client.post("/jobs", a_job(id="../../etc/passwd")),
        await service.client.post("/jobs", a_job(schema_version=7)),
        await service.client.post("/jobs?wait_s=1e9", a_job()),
        await service.client.get("/jobs/nobody"),
        await service.client.get("/jobs/..%2f..%2fetc%2fpasswd"),
        await service.client.get("/jobs/a%0d%0aX-Evil:%201"),
        await service.client.get("/jobs/m-1/trajectory", headers={"Accept": "image/png"}),
        await service.client.call("DELETE", "/jobs/nobody"),
        await service.client.get("/nowhere"),
        await service.client.call("PUT", "/jobs"),
    ]

    assert (many.status, len(many.body["jobs"])) == (202, 40)
    assert large.status == 202
    assert settled.body == {"id": "m-3", "state": "settled"}
    assert [answer.status for answer in wrong] == [422, 422, 422, 400, 422, 422, 422, 422, 422, 422, 404, 404, 404, 406, 404, 404, 405]
    assert all(set(answer.body) >= {"detail", "error"} and answer.body["detail"] for answer in wrong)
    assert "did you mean 'task'?" in wrong[4].body["detail"]
    assert wrong[6].body["field"] == "sampling.temperature"
    assert "upgrade rollstream" in wrong[8].body["detail"]
    assert all("X-Evil" not in answer.headers for answer in wrong)


async def test_a_real_trajectory_is_the_one_that_redis_has(
    service: Service, queue: QueueSettings, tmp_path: Path, client: AsyncClient, keys: Keys
) -> None:
    """Submitted and waited for in one call, with real workers."""
    async with model(tmp_path) as server, workers(queue, tmp_path):
        await service.client.post("/add_llm_server", {"address": server.url})
        done = await service.client.post("/jobs?wait_s=20", a_job(id="whole", sampling={"max_tokens": 256}))
        fetched = await service.client.get("/jobs/whole/trajectory")
        attempt = await ask(client, "HGET", keys.job(f"{RUN}.whole"), "b.run")
        kept = decode(Trajectory, await ask(client, "GET", keys.body(f"{RUN}.whole", attempt.decode(), "run")))

    assert (done.status, done.body["state"], done.body["result"]["outcome"]) == (200, "done", "ok")
    (segment,) = fetched.body["trajectory"]["segments"]
    assert segment["token_ids"] == kept.segments[0].token_ids.tolist()
    exact = [np.float32(lp) for lp in segment["logprobs"] if lp is not None]
    assert exact == [lp for lp in kept.segments[0].logprobs if not math.isnan(float(lp))]


async def test_a_reward_from_outside_ends_its_job(service: Service, queue: QueueSettings, tmp_path: Path) -> None:
    async with model(tmp_path) as server, workers(queue, tmp_path):
        await service.client.post("/add_llm_server", {"address": server.url})
        await service.client.post("/jobs", a_job(id="judged", reward="outside"))
        early = await service.client.post("/jobs/nobody/reward", {"score": 1.0})

        async def awaits() -> bool:
            return bool((await service.client.get("/jobs/judged")).body["state"] == "awaiting")

        await wait_until(awaits, "it awaits its reward")
        wrong = await service.client.post("/jobs/judged/reward", {"score": "high"})
        given = await service.client.post("/jobs/judged/reward", {"score": 0.25, "components": {"style": 0.5}})
        again = await service.client.post("/jobs/judged/reward", {"score": 1.0})
        done = await service.client.get("/jobs/judged?wait_s=20")

    assert (early.body["answer"], wrong.status, given.body["answer"]) == ("unknown", 422, "accepted")
    assert again.body["accepted"] is False
    assert (done.body["result"]["reward"], done.body["result"]["components"]["style"]) == (0.25, 0.5)
