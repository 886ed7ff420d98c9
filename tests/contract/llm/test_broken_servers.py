"""What the client makes of a server that answers wrong, is in trouble or goes away: nothing of it is believed, and the reason is named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pipeline.engines import InvalidResponse, Retryable
from pipeline.testing.wait import wait_until
from tests.contract.llm.conftest import ScriptedPair, a_request, scripted
from workers.llm import connect_backend
from workers.llm.scripted import Fault, ScriptedServer, ServerOptions
from workers.llm.scripted.faults import Corruption

SCRIPT = [*range(5, 405)]
CORRUPTIONS: dict[Corruption, str] = {
    "no_echo": "echo",
    "other_echo": "echo",
    "shorter_echo": "echo",
    "shorter_logprobs": "logprobs_length",
    "swapped_logprobs": "logprobs_ids",
    "no_logprobs": "logprobs_length",
    "null_logprob": "logprobs_finite",
    "infinite_logprob": "logprobs_finite",
    "sentinel_logprob": "logprobs_finite",
    "positive_logprob": "logprobs_finite",
    "other_token_id": "logprobs_ids",
    "unknown_finish": "finish",
    "gap_in_spans": "spans",
    "short_spans": "spans",
    "two_choices": "choices",
    "negative_id": "ids",
    "too_many_tokens": "too_many_tokens",
    "other_request_id": "request_id",
    "not_json": "json",
    "html": "json",
}


@pytest.mark.parametrize(("corruption", "check"), CORRUPTIONS.items(), ids=list(CORRUPTIONS))
async def test_an_answer_that_contradicts_itself_is_not_believed(ours: ScriptedPair, corruption: Corruption, check: str) -> None:
    ours.server.faults.arm(Fault(kind="corrupt", path=ours.path, corruption=corruption))

    with pytest.raises(InvalidResponse) as caught:
        await ours.client.generate(scripted(SCRIPT[:20]), timeout_s=10)

    assert caught.value.check == check
    assert (await ours.client.generate(scripted(SCRIPT[:20]), timeout_s=10)).output_ids[:20] == SCRIPT[:20]


@pytest.mark.parametrize(
    ("status", "reason"), [(503, "busy"), (429, "busy"), (500, "engine_failed"), (502, "engine_failed"), (408, "timeout")]
)
async def test_a_server_in_trouble_may_be_tried_again(ours: ScriptedPair, status: int, reason: str) -> None:
    ours.server.faults.arm(Fault(kind="status", path=ours.path, status=status, retry_after_s=7))

    with pytest.raises(Retryable) as caught:
        await ours.client.generate(a_request(), timeout_s=10)

    assert (caught.value.reason, caught.value.status, caught.value.retry_after_s) == (reason, status, 7.0)


async def test_an_error_of_the_engine_inside_a_200_may_be_tried_again(ours: ScriptedPair) -> None:
    ours.server.faults.arm(Fault(kind="corrupt", path=ours.path, corruption="error_finish"))

    with pytest.raises(Retryable) as caught:
        await ours.client.generate(a_request(), timeout_s=10)

    assert caught.value.reason == "engine_failed"


async def test_a_connection_closed_before_any_answer_is_tried_once_more_under_another_id(ours: ScriptedPair) -> None:
    ours.server.faults.arm(Fault(kind="disconnect", path=ours.path))

    result = await ours.client.generate(scripted([5, 6], "job.1.0.0"), timeout_s=10)

    assert result.output_ids[:2] == [5, 6]
    names = [body["request_id"] if "request_id" in body else body["rid"].rstrip(";") for _, body in list(ours.server.requests)[-2:]]
    assert names == ["job.1.0.0", "job.1.0.0-again"]


async def test_a_second_closed_connection_is_told(ours: ScriptedPair) -> None:
    ours.server.faults.arm(Fault(kind="disconnect", path=ours.path, times=2))

    with pytest.raises(Retryable) as caught:
        await ours.client.generate(a_request(), timeout_s=10)

    assert caught.value.reason == "closed"


async def test_an_answer_broken_off_is_not_believed_and_not_asked_for_again(ours: ScriptedPair) -> None:
    sent = len(ours.server.requests)
    ours.server.faults.arm(Fault(kind="break_off", path=ours.path))

    with pytest.raises(Retryable) as caught:
        await ours.client.generate(a_request(), timeout_s=10)

    assert caught.value.reason == "engine_failed"
    assert len(ours.server.requests) == sent + 1


async def test_a_server_that_dies_during_a_call_is_told_and_seen(ours: ScriptedPair) -> None:
    call = asyncio.create_task(ours.client.generate(scripted(SCRIPT, delay_ms=20), timeout_s=30))
    await wait_until(ours.runs(1), "the call runs")

    await ours.server.die()

    with pytest.raises(Retryable) as caught:
        await call
    assert caught.value.reason in ("closed", "unreachable")
    health = await ours.client.control.health()
    assert (health.alive, bool(health.detail)) == (False, True)


async def test_behind_the_address_there_may_be_another_server_by_now(tmp_path: Path) -> None:
    where = tmp_path / "llm.sock"
    async with connect_backend(f"unix:{where}") as client:
        async with ScriptedServer(ServerOptions(wire="0.31"), socket_path=where):
            assert (await client.probe()).logprobs_shape == "token_text"
        with pytest.raises(Retryable):
            await client.generate(a_request(), timeout_s=10)
        async with ScriptedServer(ServerOptions(wire="0.32"), socket_path=where):
            result = await client.generate(a_request(), timeout_s=10)
            assert (await client.probe()).logprobs_shape == "token_id"

    assert result.version_source == "spans"
