"""What the client finds out about a server by trying."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pipeline.engines import InvalidResponse, Refused, Retryable
from pipeline.testing.wait import wait_until
from tests.contract.llm.conftest import PROBLEMS, PROMPT, ScriptedPair, a_request, scripted
from workers.llm import connect_backend
from workers.llm.backend import LogprobsMode
from workers.llm.scripted import Fault, ScriptedServer, ServerOptions
from workers.llm.scripted.distribution import token_logprobs
from workers.llm.scripted.options import WireVersion


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ServerOptions(wire="0.31"), ("generate", "token_text", False, "/abort_requests", False)),
        (ServerOptions(wire="0.32"), ("generate", "token_id", True, "/inference/v1/abort_requests", False)),
        (ServerOptions(wire="0.33"), ("generate", "token_id", True, "/inference/v1/abort_requests", True)),
        (ServerOptions(wire="0.32", scale_out=False), ("completions", "arrays", False, "/abort_requests", False)),
        (ServerOptions(wire="0.33", scale_out=False), ("completions", "arrays", True, "/abort_requests", True)),
        (ServerOptions(wire="0.32", scale_out=False, dev_mode=False), ("completions", "arrays", False, "", False)),
    ],
)
async def test_the_wire_is_found_by_trying(options: ServerOptions, expected: tuple[object, ...]) -> None:
    async with ScriptedServer(options) as server, connect_backend(server.url) as client:
        caps = await client.probe()

    assert (caps.endpoint, caps.logprobs_shape, caps.has_spans, caps.abort_path, caps.rejects_while_paused) == expected
    assert (caps.model, caps.max_model_len) == (options.model, options.max_model_len)
    assert (caps.reports_version, caps.can_pause) == (options.dev_mode, options.dev_mode)


@pytest.mark.parametrize(
    ("wire", "expected"), [("sglang-0.5", ("0.5.23", "triples", True, "ids")), ("sglang-0.5.10", ("0.5.10", "triples", False, "count"))]
)
async def test_sglang_is_found_by_asking_and_says_what_it_cannot_do(wire: WireVersion, expected: tuple[object, ...]) -> None:
    options = ServerOptions(wire=wire)
    async with ScriptedServer(options) as server, connect_backend(server.url) as client:
        caps = await client.probe()
        result = await client.generate(a_request(), timeout_s=10)

    assert (caps.server_version, caps.logprobs_shape, caps.has_spans, caps.echo) == expected
    assert (caps.kind, caps.endpoint, caps.model, caps.abort_path) == ("sglang", "sglang", options.model, "/abort_request")
    assert (caps.reports_version, caps.can_pause, caps.rejects_while_paused, caps.aborts_while_paused) == (True, True, False, False)
    assert caps.max_model_len < options.max_model_len  # it keeps some places for itself
    assert result.version_source == ("spans" if caps.has_spans else "stamped")


@pytest.mark.parametrize("mode", ["raw", "scaled"])
async def test_the_kind_of_sglangs_logprobs_is_measured_at_two_temperatures(mode: LogprobsMode) -> None:
    """They follow the temperature, unless the server's environment says otherwise, and nothing on the wire says which."""
    options = ServerOptions(wire="sglang-0.5", logprobs_mode=mode)
    async with ScriptedServer(options) as server, connect_backend(server.url) as client:
        caps = await client.probe()
        cut = replace(a_request().sampling, temperature=0.7, top_p=0.5)
        result = await client.generate(a_request(sampling=cut), timeout_s=10)

    plain = cut if mode == "raw" else replace(cut, top_p=1.0)  # scaled ones are of the whole vocabulary
    labels = ["default"] * len(result.output_ids)
    made = token_logprobs(PROMPT, result.output_ids, labels, plain, mode="raw" if mode == "raw" else "processed", vocab_size=1740)
    assert (caps.logprobs_mode, result.logprobs) == (mode, made)


@pytest.mark.parametrize("scale_out", [True, False])
@pytest.mark.parametrize("mode", ["raw", "processed"])
async def test_the_kind_of_logprobs_is_found_by_a_token_that_had_no_choice(mode: LogprobsMode, scale_out: bool) -> None:
    options = ServerOptions(logprobs_mode=mode, scale_out=scale_out)
    async with ScriptedServer(options) as server, connect_backend(server.url) as client:
        assert (await client.probe()).logprobs_mode == mode


async def test_the_probe_is_made_once(newest: ScriptedPair) -> None:
    await asyncio.gather(*(newest.client.probe() for _ in range(5)))

    assert len(newest.server.requests) == 1


async def test_a_failed_probe_is_made_again(newest: ScriptedPair) -> None:
    newest.server.faults.arm(Fault(kind="status", status=503))
    with pytest.raises(Retryable):
        await newest.client.probe()

    assert (await newest.client.probe()).endpoint == "generate"


async def test_without_an_abort_route_the_connection_is_closed_instead() -> None:
    options = ServerOptions(scale_out=False, dev_mode=False)
    async with ScriptedServer(options, PROBLEMS) as server, connect_backend(server.url) as client:
        await client.probe()  # its own call would be taken for the one that runs
        call = asyncio.create_task(client.generate(scripted([*range(5, 400)], "mine", delay_ms=20), timeout_s=30))
        await wait_until(lambda: server.engine.n_running == 1, "the call runs")

        await client.abort("mine")

        with pytest.raises(Retryable) as caught:
            await call
        assert caught.value.reason == "aborted"
        await wait_until(lambda: not server.engine.request_ids(), "the server has no call", timeout_s=2)


async def test_without_version_routes_tokens_bear_the_label_that_the_caller_knows() -> None:
    async with ScriptedServer(ServerOptions(scale_out=False, dev_mode=False)) as server, connect_backend(server.url) as client:
        before = await client.generate(a_request("a"), timeout_s=10)
        labelled = await client.control.set_version("1.3")
        after = await client.generate(a_request("b", believed_version="1.3"), timeout_s=10)

    assert not labelled
    assert [result.version_source for result in (before, after)] == ["assumed", "assumed"]
    assert (before.spans[0].version, after.spans[0].version) == ("unknown", "1.3")


async def test_a_model_the_server_does_not_have_is_told_at_once() -> None:
    async with ScriptedServer() as server, connect_backend(server.url, model="another") as client:
        with pytest.raises(InvalidResponse, match="another"):
            await client.probe()


@pytest.mark.parametrize("wire", ["0.32", "sglang-0.5"])
async def test_a_key_guards_generation(wire: WireVersion) -> None:
    async with ScriptedServer(ServerOptions(wire=wire, api_key="k1")) as server:
        async with connect_backend(server.url) as stranger:
            with pytest.raises(Refused) as caught:
                await stranger.probe()
        async with connect_backend(server.url, api_key="k1") as friend:
            result = await friend.generate(a_request(), timeout_s=10)

    assert caught.value.status == 401
    assert result.output_ids


async def test_nobody_at_the_address_may_be_tried_again() -> None:
    async with ScriptedServer() as server:
        url = server.url

    async with connect_backend(url) as client:
        with pytest.raises(Retryable) as caught:
            await client.probe()
        assert caught.value.reason == "unreachable"
        assert not (await client.control.health()).alive


async def test_weights_swapped_under_a_cached_prefix_show_in_the_logprobs_unless_the_salt_tells_them_apart(newest: ScriptedPair) -> None:
    """vLLM keeps cached prefixes over a change of weights: without a flush or a salt, answers are of neither version."""
    prompt = newest.server.tokenizer.encode("word " * 200)
    await newest.client.generate(scripted([5, 6, 7], "old", prompt_ids=prompt), timeout_s=10)
    await newest.client.control.set_version("new")
    stale = await newest.client.generate(scripted([5, 6, 7], "stale", prompt_ids=prompt), timeout_s=10)
    salted = await newest.client.generate(scripted([5, 6, 7], "salted", prompt_ids=prompt, cache_salt="new"), timeout_s=10)
    await newest.client.control.reset_cache()
    fresh = await newest.client.generate(scripted([5, 6, 7], "fresh", prompt_ids=prompt), timeout_s=10)

    assert stale.logprobs != fresh.logprobs
    assert salted.logprobs == fresh.logprobs
