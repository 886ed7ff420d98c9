"""Ways in which real servers surprise, each with its story. What a trap looks like at the server is shown, then that we do not step in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipeline.engines import Exchange, Retryable
from pipeline.testing.wait import wait_until
from tests.contract.llm.conftest import PROBLEMS, ScriptedPair, a_request, scripted
from workers.llm import connect_backend
from workers.llm.scripted import Fault, ScriptedServer, ServerOptions
from workers.llm.scripted.options import WireVersion
from workers.llm.vllm import find_vllm

SCRIPT = [*range(5, 405)]


@pytest.fixture
async def sglang() -> AsyncIterator[ScriptedPair]:
    """A pair on SGLang's newest wire."""
    async with ScriptedServer(ServerOptions(wire="sglang-0.5"), PROBLEMS) as server, connect_backend(server.url) as client:
        await client.probe()
        yield ScriptedPair(client, server.tokenizer, server)


async def test_a_bare_id_aborts_nothing_and_says_that_it_did(newest: ScriptedPair) -> None:
    """vLLM puts a prefix before our id and aborts by the whole: the bare one answers 200, and the call goes on to its budget."""
    await newest.client.probe()
    call = asyncio.create_task(newest.client.generate(scripted(SCRIPT, "mine", delay_ms=20), timeout_s=30))
    await wait_until(lambda: newest.server.engine.n_running == 1, "the call runs")
    async with Exchange(newest.server.url) as http:
        await http.post("/inference/v1/abort_requests", {"request_ids": ["mine"]}, parse=False)
        await _goes_on(newest.server)

        await newest.client.abort("mine")

    assert (await call).finish == "abort"


async def test_an_empty_list_of_aborts_is_never_sent() -> None:
    """To vLLM's development route no ids means all of them: of every run that the server works for."""
    options = ServerOptions(scale_out=False)
    async with ScriptedServer(options) as server, Exchange(server.url) as http, connect_backend(server.url) as client:
        await client.probe()
        call = asyncio.create_task(client.generate(scripted(SCRIPT, delay_ms=20), timeout_s=30))
        await wait_until(lambda: server.engine.n_running == 1, "the call runs")

        await (await find_vllm(http, "")).abort([])
        await _goes_on(server)

        await http.post("/abort_requests", {"request_ids": []})
        assert (await call).finish == "abort"


async def test_an_abort_takes_no_call_whose_id_begins_alike(sglang: ScriptedPair) -> None:
    """SGLang's scheduler aborts every call whose id begins with the one that is named: turn 1 of a job would have taken turns 10 to 19."""
    calls = [asyncio.create_task(sglang.client.generate(scripted(SCRIPT, f"job.{n}", delay_ms=3), timeout_s=30)) for n in (1, 10, 11)]
    await wait_until(lambda: sglang.server.engine.n_running == 3, "the calls run")

    await sglang.client.abort("job.1")

    assert [result.finish for result in await asyncio.gather(*calls)] == ["abort", "stop", "stop"]
    async with Exchange(sglang.server.url) as http:
        bare = {"sampling_params": {"custom_params": {"script": SCRIPT, "delay_ms": 20}}, "input_ids": [5]}
        both = [asyncio.create_task(http.post("/generate", {**bare, "rid": rid}, timeout_s=30)) for rid in ("job.1", "job.10")]
        await wait_until(lambda: sglang.server.engine.n_running == 2, "the calls run")
        await http.post("/abort_request", {"rid": "job.1"}, parse=False)
        assert [_finish(answer) for answer in await asyncio.gather(*both)] == ["abort", "abort"]


async def test_an_id_that_the_server_may_still_have_is_not_used_again(sglang: ScriptedPair) -> None:
    """A connection closes without an answer, and the request is sampled all the same: SGLang refuses the id when it comes again, with a
    400, which would have been the end of the job."""
    sglang.server.faults.arm(Fault(kind="disconnect", path="/generate", times=2))
    with pytest.raises(Retryable):
        await sglang.client.generate(scripted([5, 6], "job"), timeout_s=10)

    result = await sglang.client.generate(scripted([5, 6], "job"), timeout_s=10)

    assert result.output_ids[:2] == [5, 6]
    rids = [body["rid"] for _, body in sglang.server.requests]
    assert [rid for rid in rids if rid.startswith("job")] == ["job;", "job-again;", "job-again2;"]


async def test_a_call_that_came_during_a_pause_is_out_of_reach_until_it_ends(sglang: ScriptedPair) -> None:
    """At SGLang's gate neither an abort by id reaches a call nor one of all: whoever pauses must let no call begin."""
    assert not (await sglang.client.probe()).aborts_while_paused
    await sglang.client.control.pause("keep")
    call = asyncio.create_task(sglang.client.generate(scripted([5, 6], "late"), timeout_s=30))
    await wait_until(sglang.server.engine.request_ids, "the call has arrived")

    await sglang.client.abort("late")
    assert sglang.server.engine.request_ids() == ["late;"]

    await sglang.client.control.resume()
    assert (await call).output_ids[:2] == [5, 6]


async def test_a_budget_beyond_the_context_is_cut_by_us_where_the_server_refuses_it(sglang: ScriptedPair) -> None:
    """vLLM clips what does not fit, SGLang answers 400: the last turn of a long job would have been refused."""
    caps = await sglang.client.probe()

    result = await sglang.client.generate(a_request(prompt_ids=[5] * (caps.max_model_len - 3), max_tokens=500), timeout_s=10)

    assert (len(result.output_ids), result.finish) == (3, "length")


async def test_a_token_that_the_engine_made_up_is_not_believed(sglang: ScriptedPair) -> None:
    """Where the sampler gave no number SGLang writes an end token in its place and calls it a stop, of the text `NaN happened`."""
    sglang.server.faults.arm(Fault(kind="corrupt", path="/generate", corruption="error_finish"))

    with pytest.raises(Retryable, match="NaN happened"):
        await sglang.client.generate(scripted([5, 6, 7]), timeout_s=10)


@pytest.mark.parametrize("wire", ["0.32", "sglang-0.5"])
async def test_an_idle_connection_that_the_server_closes_costs_no_call(wire: WireVersion) -> None:
    """Servers close idle connections after 5 s, clients keep them longer: the first call after a slow tool met a closed one."""
    options = ServerOptions(wire=wire, keepalive_s=0.05)
    async with ScriptedServer(options) as server, connect_backend(server.url) as client:
        for number in range(5):
            await client.generate(a_request(f"job.{number}"), timeout_s=10)
            await wait_until(lambda: not server.connections, "the server has closed the idle connection")


@pytest.mark.parametrize("wire", ["0.32", "sglang-0.5"])
async def test_aborts_go_out_before_the_connections_close(wire: WireVersion) -> None:
    """A worker that drains aborts the calls of a cancelled group and closes its clients in the same breath: the aborts were still on their
    way to being gathered when the connections closed, and the calls, another process's, went on to their budgets."""
    options = ServerOptions(wire=wire)
    async with ScriptedServer(options) as server, connect_backend(server.url) as other:
        await other.probe()
        call = asyncio.create_task(other.generate(scripted(SCRIPT, "theirs", delay_ms=20), timeout_s=30))
        await wait_until(lambda: server.engine.n_running == 1, "the call runs")
        async with connect_backend(server.url) as client:
            await client.probe()
            abort = asyncio.create_task(client.abort("theirs"))
            await asyncio.sleep(0)  # it has been gathered, and not been sent

        await abort
        assert (await call).finish == "abort"


@pytest.mark.parametrize("wire", ["0.32", "sglang-0.5"])
async def test_a_client_that_closes_leaves_no_call_at_the_server(wire: WireVersion) -> None:
    options = ServerOptions(wire=wire)
    async with ScriptedServer(options) as server:
        async with connect_backend(server.url) as client:
            await client.probe()
            calls = [asyncio.create_task(client.generate(scripted(SCRIPT, f"job.{n}", delay_ms=20), timeout_s=30)) for n in range(3)]
            await wait_until(lambda: server.engine.n_running == 3, "the calls run")

        assert [result.finish for result in await asyncio.gather(*calls)] == ["abort"] * 3
        assert server.engine.request_ids() == []


@pytest.mark.parametrize("wire", ["0.32", "sglang-0.5"])
async def test_a_client_may_be_closed_while_its_callers_are_cancelled(wire: WireVersion) -> None:
    """A worker that is told twice to stop cancels its jobs and closes its clients at once: neither may trip over the other."""
    options = ServerOptions(wire=wire)
    async with ScriptedServer(options) as server:
        async with connect_backend(server.url) as client:
            await client.probe()
            calls = [asyncio.create_task(client.generate(scripted(SCRIPT, f"job.{n}", delay_ms=20), timeout_s=30)) for n in range(6)]
            await wait_until(lambda: server.engine.n_running == 6, "the calls run")
            for call in calls[:3]:
                call.cancel()
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0)
            for call in calls[3:]:
                call.cancel()
            await closing

        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(end) for end in ended} == {asyncio.CancelledError}
        await wait_until(lambda: not server.engine.request_ids(), "the server has no call", timeout_s=2)


async def test_a_server_of_another_kind_at_the_address_gets_its_own_wire(tmp_path: Path) -> None:
    """vLLM goes, SGLang comes, and no connection broke under our hands: the first call meets a route that is not there."""
    where = tmp_path / "llm.sock"
    async with connect_backend(f"unix:{where}") as client:
        async with ScriptedServer(ServerOptions(wire="0.32", keepalive_s=0.05), socket_path=where) as server:
            await client.generate(scripted([5, 6], "a"), timeout_s=10)
            await wait_until(lambda: not server.connections, "the server has closed the idle connection")
        async with ScriptedServer(ServerOptions(wire="sglang-0.5"), socket_path=where):
            result = await client.generate(scripted([5, 6], "b"), timeout_s=10)
            caps = await client.probe()

    assert (result.output_ids[:2], caps.kind) == ([5, 6], "sglang")


async def _goes_on(server: ScriptedServer) -> None:
    """Returns when the one call of the server has sampled more."""
    before = server.engine.generation_tokens
    await wait_until(lambda: server.engine.generation_tokens > before + 1, "the call samples on")


def _finish(answer: object) -> object:
    match answer:
        case {"meta_info": {"finish_reason": {"type": str(kind)}}}:
            return kind
        case other:
            return other
