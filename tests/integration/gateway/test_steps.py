"""Steps over HTTP: prompts in, a step out, as often as it is asked for, and gone with its ack."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from tests.integration.gateway.service import RUN, Json, Service, gateway, next_event
from tests.integration.trainer_client.conftest import pump, supervisor
from tests.integration.trainer_client.pump import Pump

pytestmark = pytest.mark.one_server
__all__ = ["pump", "supervisor"]  # fixtures of the trainer client's tests


STEP: Json = {"task": "math", "groups": 2, "n": 2, "ahead": 0}


def prompts(*numbers: int) -> list[Json]:
    return [{"id": f"e0-{number}", "data": {"question": f"{number} + 1?", "answer": str(number + 1)}} for number in numbers]


async def test_prompts_become_a_step_that_is_fetched_streamed_and_acked(
    queue: QueueSettings, tmp_path: Path, pump: Pump, supervisor: Supervisor
) -> None:
    """Asked for before there are prompts; posted twice; a later process of the gateway gives out the same step; its ack lets go of it."""
    async with gateway(queue, tmp_path) as service:
        client = service.client
        open_step = await client.post("/steps?wait_s=0.05", STEP)
        pushed = await client.post("/prompts", {"prompts": prompts(0, 1, 2)})
        again = await client.post("/prompts", {"prompts": prompts(2, 3), "end": True})
        step = await client.post("/steps?wait_s=20", STEP)
        same = await client.get("/steps/1")
        early = await client.post("/steps/2/ack")
        member = step.body["groups"][0]["members"][0]
        trajectory = await client.get(f"/jobs/{member['job']}/trajectory")
        refused = await client.call("DELETE", f"/jobs/{member['job']}")

    async with gateway(queue, tmp_path) as service:
        client = service.client
        after = await client.post("/steps?wait_s=20", STEP)
        acked = await client.post("/steps/1/ack")
        twice = await client.post("/steps/1/ack")
        rest = await client.post("/steps?wait_s=20&index=2", STEP)
        await client.post("/steps/2/ack")
        ended = await client.post("/steps?wait_s=20", STEP)
        gone = await client.get(f"/jobs/{member['job']}/trajectory")

    assert (open_step.status, open_step.body["state"], open_step.body["index"]) == (202, "open", 1)
    assert open_step.body["why_waiting"]
    assert (pushed.body, again.body) == ({"pushed": 3, "known": 0, "ended": False}, {"pushed": 1, "known": 1, "ended": True})
    assert (step.status, step.body["state"], len(step.body["groups"])) == (200, "complete", 2)
    assert same.body == step.body
    assert (early.status, early.body["error"]) == (409, "not_given_out")
    assert sorted(one["reward"] for one in step.body["groups"][0]["members"]) == [0.0, 1.0]
    assert step.body["metrics"]
    assert (trajectory.status, len(trajectory.body["trajectory"]["segments"])) == (200, 1)
    assert (refused.status, refused.body["error"]) == (409, "member_of_step")
    assert {group["id"] for group in after.body["groups"]} == {group["id"] for group in step.body["groups"]}
    assert (acked.body, twice.body) == ({"acked": [1], "next": 2}, {"acked": [], "next": 2})
    assert len(rest.body["groups"]) == 2
    assert (ended.status, ended.body["state"]) == (200, "ended")
    assert gone.status == 404


async def test_wrong_steps_get_a_sentence(service: Service) -> None:
    wrong = [
        await service.client.post("/steps", {**STEP, "groups": 0}),
        await service.client.post("/steps", {**STEP, "n": 1}),
        await service.client.post("/steps", {**STEP, "task": "chess"}),
        await service.client.post("/steps?index=-1", STEP),
        await service.client.get("/steps/7"),
        await service.client.get("/steps/7e3"),
        await service.client.post("/prompts", {"prompts": [{"id": "a b", "data": {"q": 1}}]}),
        await service.client.post("/prompts", {"prompts": [{"id": "a", "data": {}}]}),
        await service.client.post("/prompts", {}),
    ]

    assert [answer.status for answer in wrong] == [422, 422, 400, 422, 404, 422, 422, 422, 422]
    assert "from 1 to 100,000, got 0" in wrong[0].body["detail"]
    assert "policy='every'" in wrong[1].body["detail"]
    assert (await service.client.get("/steps")).body == {"next": 1, "asked_for": []}


async def test_events_are_resumed_where_they_broke_off(service: Service, scripts: Scripts, pump: Pump) -> None:
    """A reader that comes back with its last id misses nothing and sees nothing twice; kinds are chosen; a false id is refused."""
    session, url = service.client.session, service.url
    await service.client.post("/jobs", {"jobs": [{"task": "math", "prompt": {"q": "1"}, "id": f"j-{number}"} for number in range(3)]})
    async with session.get(url + "/events?from=0&kinds=job") as stream:
        assert stream.content_type == "text/event-stream"
        first = [await next_event(stream.content) for _ in range(2)]
    await service.client.post("/jobs", {"jobs": [{"task": "math", "prompt": {"q": "1"}, "id": f"j-{number}"} for number in range(3, 5)]})
    async with session.get(url + "/events", headers={"Last-Event-ID": first[-1][0]}) as stream:
        rest = [await next_event(stream.content) for _ in range(3)]
    refused = [await service.client.get("/events?from=yesterday"), await service.client.get("/events?kinds=job,gossip")]

    seen = [*first, *rest]
    assert sorted(data["job"] for _, _, data in seen) == [f"{RUN}.j-{number}" for number in range(5)]
    assert {kind for _, kind, _ in seen} == {"job"}
    assert [entry for entry, _, _ in seen] == sorted((entry for entry, _, _ in seen), key=lambda entry: tuple(map(int, entry.split("-"))))
    assert [answer.status for answer in refused] == [422, 422]
