"""What becomes of a job when its call ends early: the client goes, the gateway leaves, is killed and started again, or is fenced."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from ops.gateway import EXIT_FENCED
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.testing import wait_until
from tests.integration.gateway.service import PARAMS, RUN, Answer, Service, gateway, instance, model, workers
from trainer_client import JobRequest, connect

pytestmark = pytest.mark.one_server


async def begin(service: Service, address: str) -> None:
    await service.client.post("/add_llm_server", {"address": address})
    assert (await service.client.post("/start")).status == 200


def calling(service: Service, job: str, **more: object) -> asyncio.Task[Answer]:
    """A call of `/process` that is under way."""
    body = {"instance": instance(), "sampling_params": PARAMS, "job_id": job, **more}
    return asyncio.create_task(service.client.post("/process", body), name=job)


async def is_there(client: AsyncClient, keys: Keys, *jobs: str) -> bool:
    return all([await ask(client, "EXISTS", keys.job(f"{RUN}.{job}")) for job in jobs])


async def state_of(service: Service, job: str) -> str:
    return str((await service.client.get(f"/jobs/{job}")).body.get("state"))


async def test_a_client_that_goes_cancels_its_job_only_when_it_asked_for_that(
    service: Service, client: AsyncClient, keys: Keys, queue: QueueSettings, tmp_path: Path
) -> None:
    """By field and by header; the job of one that did not ask runs, and its result is fetched by another client."""
    await begin(service, f"unix:{tmp_path / 'model.sock'}")
    by_field, stays = calling(service, "field", cancel_on_disconnect=True), calling(service, "stays")
    by_header = asyncio.create_task(
        service.client.post(
            "/process",
            {"instance": instance(), "sampling_params": PARAMS, "job_id": "header"},
            headers={"X-Cancel-On-Disconnect": "true"},
        )
    )
    await wait_until(lambda: is_there(client, keys, "field", "header", "stays"), "the jobs were accepted")

    for call in (by_field, by_header, stays):
        call.cancel()
    await asyncio.gather(by_field, by_header, stays, return_exceptions=True)

    async def both_ended() -> bool:
        return [await state_of(service, job) for job in ("field", "header")] == ["done", "done"]

    await wait_until(both_ended, "the two jobs were cancelled")
    assert (await service.client.get("/jobs/field")).body["result"]["outcome"] == "cancelled"
    assert await state_of(service, "stays") == "ready"
    async with model(tmp_path), workers(queue, tmp_path):
        fetched = await service.client.get("/jobs/stays", params={"wait_s": "20"})
    assert (fetched.body["state"], fetched.body["result"]["outcome"]) == ("done", "ok")
    assert (await service.client.get("/jobs/stays/trajectory")).status == 200


async def test_a_client_that_goes_while_its_job_waits_to_be_taken(
    queue: QueueSettings, client: AsyncClient, keys: Keys, tmp_path: Path
) -> None:
    """The queue is full when it goes. When there is room its job is taken all the same; where it asked for that, it is cancelled then."""
    tight = queue.model_copy(update={"max_waiting": 1, "admit_window": 1})
    async with gateway(tight, tmp_path) as service:
        await begin(service, "http://127.0.0.1:1")
        for name in ("admitted", "waiting"):
            await service.client.post("/jobs", {"task": "math", "prompt": {"question": "x"}, "id": name})
        stays, goes = calling(service, "stays"), calling(service, "goes", cancel_on_disconnect=True)
        await wait_until(lambda: _are_pending(service, 2), "both calls wait for room")
        for call in (stays, goes):
            call.cancel()
        await asyncio.gather(stays, goes, return_exceptions=True)
        await wait_until(lambda: _are_pending(service, 0), "the gateway knows that they went")
        for name in ("waiting", "admitted"):
            await service.client.call("DELETE", f"/jobs/{name}")

        async def both_taken() -> bool:
            return await is_there(client, keys, "stays", "goes") and await state_of(service, "goes") == "done"

        await wait_until(both_taken, "both jobs were taken, and one cancelled")
        ended = (await service.client.get("/jobs/goes")).body["result"]["outcome"]
        left = await state_of(service, "stays")

    assert (ended, left) == ("cancelled", "ready")


async def _are_pending(service: Service, count: int) -> bool:
    return bool((await service.client.get("/status")).body["pending_jobs"] == count)


async def test_a_gateway_that_leaves_says_where_the_result_will_be_and_the_next_one_has_it(
    queue: QueueSettings, client: AsyncClient, keys: Keys, tmp_path: Path
) -> None:
    """The door is still open at the next process, and the same request attaches to the same job."""
    async with gateway(queue, tmp_path, grace_s=0.0) as first:
        await begin(first, f"unix:{tmp_path / 'model.sock'}")
        call = calling(first, "one")
        await wait_until(lambda: is_there(client, keys, "one"), "the job was accepted")
        first.shutdown.stop.set()
        told = await call
        assert await first.code() == 0

    async with gateway(queue, tmp_path) as second:
        again = calling(second, "one")
        async with model(tmp_path), workers(queue, tmp_path):
            answer = await again

    assert (told.status, told.body["error"], told.body["result"]) == (503, "draining", "/jobs/one")
    assert told.headers["Retry-After"] == "5"
    assert (answer.status, answer.body["success"], answer.body["job_id"]) == (200, True, "one")


async def test_another_request_under_an_id_is_refused_by_the_next_process_too(
    queue: QueueSettings, client: AsyncClient, keys: Keys, tmp_path: Path
) -> None:
    """The first request was known to the process that took it alone: after a restart another body under its id got the old job, without
    a word. The same body gets it, also when the settings of the gateway have changed. Jobs of other clients keep nothing of this."""
    prompt = {"task": "math", "prompt": {"question": "x"}}
    async with gateway(queue, tmp_path, grace_s=0.0) as first:
        await begin(first, "http://127.0.0.1:1")
        call = calling(first, "one")
        await wait_until(lambda: is_there(client, keys, "one"), "the job was accepted")
        await first.client.post("/jobs", {**prompt, "id": "two"})
        first.shutdown.stop.set()
        assert (await call).status == 503

    async with gateway(queue, tmp_path, timeout_s=33.0) as second:
        again = calling(second, "one")
        await wait_until(lambda: _are_pending(second, 1), "the same request waits for the same job")
        others = [
            await calling(second, "one", instance=instance(2)),
            await calling(second, "one", sampling_params={**PARAMS, "temperature": 0.5}),
            await second.client.post("/jobs", {**prompt, "id": "two", "priority": 3}),
            await second.client.post("/jobs", {"jobs": [{**prompt, "id": "new"}, {**prompt, "id": "two", "prompt": {"question": "y"}}]}),
        ]
        same = await second.client.post("/jobs", {**prompt, "id": "two", "priority": 0})
        accepted = await is_there(client, keys, "new")
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)
    async with connect(queue, run="own") as run:
        await run.submit(JobRequest(task="math", prompt={"question": "x"}, id="plain"))
        plain = await ask(client, "HEXISTS", keys.job("own.plain"), "req")

    assert [(other.status, other.body["error"], other.body["field"]) for other in others] == [(409, "id_taken", "id")] * 4
    assert "job 'two' was asked for with another request" in others[2].body["detail"]
    assert (same.status, same.body["id"], accepted, plain) == (202, "two", False, 0)


async def test_a_draining_gateway_finishes_its_calls_and_takes_no_more(
    queue: QueueSettings, client: AsyncClient, keys: Keys, tmp_path: Path
) -> None:
    async with gateway(queue, tmp_path, grace_s=30.0) as service:
        await begin(service, f"unix:{tmp_path / 'model.sock'}")
        call = calling(service, "one")
        await wait_until(lambda: is_there(client, keys, "one"), "the job was accepted")
        service.shutdown.stop.set()

        async def drains() -> bool:
            return (await service.client.get("/healthz")).status == 503

        await wait_until(drains, "it drains")
        refused = [await calling(service, "two"), await service.client.post("/jobs", {"task": "math", "prompt": {"question": "x"}})]
        async with model(tmp_path), workers(queue, tmp_path):
            answer = await call
        assert await service.code() == 0

    assert [(one.status, one.body["error"]) for one in refused] == [(503, "draining")] * 2
    assert (answer.status, answer.body["success"]) == (200, True)


async def test_a_second_gateway_on_one_run_fences_the_first_which_says_so_and_ends(
    queue: QueueSettings, client: AsyncClient, keys: Keys, tmp_path: Path
) -> None:
    quick = queue.model_copy(update={"run_ttl_s": 2.0})  # a client hears of its fencing with its next sign of life
    async with gateway(quick, tmp_path) as first:
        await begin(first, "http://127.0.0.1:1")
        call = calling(first, "one")
        await wait_until(lambda: is_there(client, keys, "one"), "the job was accepted")
        async with gateway(quick, tmp_path) as second:
            told = await call
            code = await first.code()
            state = await state_of(second, "one")

    assert (told.status, told.body["error"], told.body["result"]) == (503, "fenced", "/jobs/one")
    assert "another client took the run 'gate' over" in told.body["detail"]
    assert code == EXIT_FENCED
    assert state == "ready"
    with pytest.raises(aiohttp.ClientConnectionError):
        async with aiohttp.ClientSession() as session, session.get(first.url + "/healthz"):
            pass


async def test_results_go_some_time_after_their_delivery_and_not_before(
    queue: QueueSettings, client: AsyncClient, keys: Keys, tmp_path: Path
) -> None:
    """Delivered ones go early when there are too many; undelivered ones hold the door shut instead."""
    async with model(tmp_path) as server, workers(queue, tmp_path), gateway(queue, tmp_path, max_kept=2) as service:
        await begin(service, server.url)
        first = await calling(service, "first")
        again = await calling(service, "first")
        await service.client.post(
            "/jobs", {"task": "math", "prompt": {"question": "x", "answer": "1"}, "options": {"tools": False}, "id": "unread"}
        )
        await wait_until(lambda: _is_done(service, "unread"), "the second job ended")
        third = await calling(service, "third")
        gone = await calling(service, "first")
        await service.client.post(
            "/jobs", {"task": "math", "prompt": {"question": "y", "answer": "1"}, "options": {"tools": False}, "id": "full"}
        )
        refused = await service.client.post("/jobs", {"task": "math", "prompt": {"question": "z", "answer": "1"}, "id": "beyond"})

    assert (first.status, again.status, third.status) == (200, 200, 200)
    assert first.body == again.body
    assert (gone.status, gone.body["error"]) == (410, "gone")
    assert (refused.status, refused.body["error"]) == (503, "too_many_kept")


async def test_stop_ends_what_runs_whether_a_call_waits_for_it_or_not_and_answers_then(queue: QueueSettings, tmp_path: Path) -> None:
    """Engines may sleep when it has answered. What came by `/jobs` runs on; so does a job that another call waits for."""
    async with model(tmp_path, per_token_s=0.2) as server, workers(queue, tmp_path), gateway(queue, tmp_path) as service:
        await begin(service, server.url)
        own = {"task": "math", "prompt": {"question": "x", "answer": "1"}, "options": {"tools": False}, "id": "own"}
        await service.client.post("/jobs", own)
        waits, goes = calling(service, "waits"), calling(service, "orphan")
        second, first = calling(service, "shared"), calling(service, "shared", cancel_on_disconnect=True)

        async def all_run() -> bool:
            return all([await stage_of(service, job) == ("running", "run") for job in ("own", "waits", "orphan", "shared")])

        await wait_until(all_run, "all of them call the model")
        for call in (goes, first):
            call.cancel()
        await asyncio.gather(goes, first, return_exceptions=True)
        stopped = await service.client.post("/stop")
        after = {job: await stage_of(service, job) for job in ("own", "waits", "orphan", "shared")}
        told = await asyncio.gather(waits, second)

    assert stopped.body["cancelled"] == dict.fromkeys(("waits", "orphan", "shared"), "running")
    assert {job: state for job, (state, _) in after.items()} == {"own": "running", **dict.fromkeys(("waits", "orphan", "shared"), "done")}
    assert [(answer.status, answer.body["error"]) for answer in told] == [(500, "stopped")] * 2


async def stage_of(service: Service, job: str) -> tuple[str, str]:
    body = (await service.client.get(f"/jobs/{job}")).body
    return str(body.get("state")), str(body.get("stage"))


async def test_a_result_goes_when_its_time_is_over(queue: QueueSettings, client: AsyncClient, keys: Keys, tmp_path: Path) -> None:
    """One that was fetched, soon after; one that nobody asks for, later; what is open stays."""
    job = {"task": "math", "prompt": {"question": "x", "answer": "1"}, "options": {"tools": False}}
    async with gateway(queue, tmp_path, keep_delivered_s=0.0, keep_unasked_s=60.0) as service, model(tmp_path) as server:
        await service.client.post("/add_llm_server", {"address": server.url})
        await service.client.post("/jobs", {"jobs": [{**job, "id": "fetched"}, {**job, "id": "unasked"}]})
        async with workers(queue, tmp_path):
            for name in ("fetched", "unasked"):
                assert (await service.client.get(f"/jobs/{name}?wait_s=20")).body["state"] == "done"
        assert (await service.client.get("/jobs/fetched/trajectory")).status == 200

        async def is_gone() -> bool:
            return not await is_there(client, keys, "fetched")

        await wait_until(is_gone, "the delivered result was let go")
        assert await is_there(client, keys, "unasked")
    async with gateway(queue, tmp_path, keep_unasked_s=0.0):

        async def both_gone() -> bool:
            return not await is_there(client, keys, "unasked")

        await wait_until(both_gone, "the next process let go of what nobody asked for")


async def _is_done(service: Service, job: str) -> bool:
    return await state_of(service, job) == "done"
