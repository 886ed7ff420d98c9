"""Redis dies under what a gateway has open, and comes back: calls and streams stand, nothing is lost, and who only looks is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.keys import Keys
from pipeline.redis_client import command_client
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer, wait_until
from tests.integration.gateway.service import PARAMS, RUN, gateway, instance, next_event, question, read_text
from tests.integration.trainer_client.pump import Pump, pumping

pytestmark = pytest.mark.one_server

OWN = {"task": "math", "prompt": {"question": question(2), "answer": "4"}, "options": {"tools": False}}


@pytest.mark.slow
async def test_redis_dies_under_open_calls_and_streams_and_comes_back(make_server: Callable[..., PrivateServer], tmp_path: Path) -> None:
    """A blocking `/process` and a submission wait for it and are answered; a stream of events says what it waits for, stands, and has each
    event once; a look gets a 503 with the time to come back; the gateway lives."""
    server = make_server(persistence="always")
    queue = QueueSettings(redis_url=server.url, namespace="gwaway")
    commands = command_client(queue)
    scripts = Scripts(commands, Keys.of_shard(queue.namespace, 0))
    async with gateway(queue, tmp_path, timeout_s=300.0) as service:
        client = service.client
        await client.post("/add_llm_server", {"address": "http://127.0.0.1:9"})
        await client.post("/start")
        async with client.session.get(service.url + "/events?from=0&kinds=job") as stream:
            body = {"instance": instance(), "sampling_params": PARAMS, "job_id": "one"}
            call = asyncio.create_task(client.post("/process", body), name="call")

            async def is_accepted() -> bool:
                return bool((await client.get("/jobs/one")).body.get("state") == "ready")

            await wait_until(is_accepted, "the job was accepted")
            await asyncio.to_thread(server.stop)
            while await stream.content.readline() != b": Redis does not answer\n":
                pass  # comments of before
            looks = [await client.get(path) for path in ("/jobs/one", "/status", "/jobs/nobody?wait_s=5")]
            health, metrics = await client.get("/healthz"), await read_text(service, "/metrics")
            late = asyncio.create_task(client.post("/jobs", {**OWN, "id": "two"}), name="late")
            waiting = (call.done(), late.done(), service.task.done())

            await asyncio.to_thread(server.start)
            accepted = await late
            async with pumping(Pump(scripts)):
                answer = await call
                second = await client.get("/jobs/two?wait_s=20")
                events = [await next_event(stream.content) for _ in range(2)]
        again = await client.post("/process", body)
    await commands.aclose()

    assert [(look.status, look.body["error"], look.headers["Retry-After"]) for look in looks] == [(503, "no_redis", "2")] * 3
    assert (health.status, waiting) == (200, (False, False, False))
    assert 'rollstream_gateway_now{what="redis_answers"} 0.0' in metrics
    assert (answer.status, answer.body["outcome"]) == (200, "ok")
    assert (accepted.status, second.body["state"], second.body["result"]["outcome"]) == (202, "done", "ok")
    assert sorted(data["job"] for _, _, data in events) == [f"{RUN}.one", f"{RUN}.two"]
    assert again.body["messages"] == answer.body["messages"]  # one job, one result
