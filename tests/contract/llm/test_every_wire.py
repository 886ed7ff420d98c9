"""What every wire shape owes the agent, through the client."""

from __future__ import annotations

import asyncio
import math

import pytest

from pipeline.engines import Overlong, Refused, Retryable
from pipeline.testing.wait import wait_until
from tests.contract.llm.conftest import PROMPT, Pair, ScriptedPair, a_request, scripted
from workers.llm import Span
from workers.llm.scripted.distribution import token_logprobs

SCRIPT = [*range(5, 405)]
"""Calls that end by themselves take three quarters of a second with their delays: a busy machine, too, must find them running."""


async def test_the_ids_of_an_answer_are_those_the_model_said(pair: Pair) -> None:
    end = pair.end_id

    result = await pair.client.generate(scripted([300, 301, 7, 7, 1200, end]), timeout_s=10)

    assert result.output_ids == [300, 301, 7, 7, 1200, end]
    assert (result.finish, result.stop_reason) == ("stop", None)
    assert len(result.logprobs) == 6
    assert all(math.isfinite(value) and value <= 0 for value in result.logprobs)


async def test_logprobs_arrive_bit_for_bit(ours: ScriptedPair) -> None:
    result = await ours.client.generate(a_request(), timeout_s=10)

    made = token_logprobs(
        PROMPT, result.output_ids, ["default"] * len(result.output_ids), a_request().sampling, mode="processed", vocab_size=1740
    )
    assert result.logprobs == made


async def test_an_equal_request_gives_an_equal_answer_and_another_seed_another(pair: Pair) -> None:
    first = await pair.client.generate(a_request("a"), timeout_s=10)
    again = await pair.client.generate(a_request("b"), timeout_s=10)
    other = await pair.client.generate(a_request("c", seed=4), timeout_s=10)

    assert (first.output_ids, first.logprobs) == (again.output_ids, again.logprobs)
    assert first.output_ids != other.output_ids


async def test_an_answer_cut_at_its_budget_says_so(pair: Pair) -> None:
    result = await pair.client.generate(scripted(SCRIPT, max_tokens=3), timeout_s=10)

    assert (result.output_ids, result.finish) == (SCRIPT[:3], "length")


async def test_a_stop_string_ends_the_answer_and_the_record_keeps_the_tokens(pair: Pair) -> None:
    ids = pair.tokenizer.encode("The answer is 42, or so it seems.")

    result = await pair.client.generate(scripted(ids, stop=("42",)), timeout_s=10)

    assert result.output_ids == ids[: len(result.output_ids)]
    assert pair.tokenizer.decode(result.output_ids).endswith("42")
    assert result.finish == "stop"
    if (await pair.client.probe()).logprobs_shape != "token_text":  # that of 0.31, which has no stop_reason either
        assert result.stop_reason == "42"


async def test_a_stop_token_other_than_the_end_token_is_named(pair: Pair) -> None:
    result = await pair.client.generate(scripted([10, 11, 12], stop_token_ids=(11,)), timeout_s=10)

    assert result.output_ids == [10, 11]
    if (await pair.client.probe()).logprobs_shape != "token_text":  # that of 0.31, which has no stop_reason either
        assert result.stop_reason == 11


async def test_an_aborted_call_returns_what_it_has(pair: Pair) -> None:
    call = asyncio.create_task(pair.client.generate(scripted(SCRIPT, "slow", delay_ms=20), timeout_s=20))
    bystander = asyncio.create_task(pair.client.generate(scripted(SCRIPT[:100], "bystander", delay_ms=8), timeout_s=20))
    await wait_until(pair.runs(2), "both calls run")

    await pair.client.abort("slow")

    result = await call
    assert result.finish == "abort"
    assert result.output_ids == SCRIPT[: len(result.output_ids)]
    assert len(result.output_ids) == len(result.logprobs) < len(SCRIPT)
    assert (await bystander).finish == "stop"


async def test_aborting_what_nobody_knows_changes_nothing(pair: Pair) -> None:
    call = asyncio.create_task(pair.client.generate(scripted(SCRIPT[:50], "mine", delay_ms=15), timeout_s=20))
    await wait_until(pair.runs(1), "the call runs")

    await pair.client.abort("somebody-else")

    assert (await call).finish == "stop"


async def test_a_cancelled_task_leaves_no_call_at_the_server(pair: Pair) -> None:
    call = asyncio.create_task(pair.client.generate(scripted(SCRIPT, delay_ms=20), timeout_s=60))
    await wait_until(pair.runs(1), "the call runs")

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    await wait_until(pair.is_idle, "the server has no call", timeout_s=2)


async def test_a_call_that_takes_too_long_is_ended_and_may_be_retried(pair: Pair) -> None:
    with pytest.raises(Retryable) as caught:
        await pair.client.generate(scripted(SCRIPT, delay_ms=50), timeout_s=0.1)

    assert caught.value.reason == "timeout"
    await wait_until(pair.is_idle, "the server has no call", timeout_s=2)


async def test_keep_freezes_a_call_and_its_tokens_bear_the_version_they_came_under(pair: Pair) -> None:
    await pair.client.control.set_version("1.0")
    before = await pair.tokens_out()
    call = asyncio.create_task(pair.client.generate(scripted(SCRIPT[:100], delay_ms=10), timeout_s=30))

    async def has_sampled() -> bool:
        return await pair.tokens_out() > before

    await wait_until(has_sampled, "tokens come out")

    await pair.client.control.pause("keep")
    assert (await pair.client.control.health()).paused == pair.tells_of_pauses
    await pair.client.control.set_version("1.1")
    assert not call.done()
    await pair.client.control.resume()

    result = await call
    assert result.output_ids[:-1] == SCRIPT[:100]
    assert result.spans[0] == Span(version="1.0", start=0, end=result.spans[0].end)
    if (await pair.client.probe()).has_spans:
        assert [span.version for span in result.spans] == ["1.0", "1.1"]
        assert result.spans[-1].end == 101
    else:
        assert (result.spans, result.version_after) == ((Span(version="1.0", start=0, end=101),), "1.1")


async def test_a_pause_that_aborts_hands_over_partial_answers(pair: Pair) -> None:
    call = asyncio.create_task(pair.client.generate(scripted(SCRIPT, delay_ms=20), timeout_s=30))
    await wait_until(pair.runs(1), "the call runs")

    await pair.client.control.pause("abort")

    result = await call
    assert result.finish == "abort"
    assert result.output_ids == SCRIPT[: len(result.output_ids)]
    await pair.client.control.resume()


async def test_a_pause_that_waits_lets_calls_finish(pair: Pair) -> None:
    call = asyncio.create_task(pair.client.generate(scripted(SCRIPT[:40], delay_ms=18), timeout_s=30))
    await wait_until(pair.runs(1), "the call runs")

    await pair.client.control.pause("wait")

    await wait_until(call.done, "the call is done when the pause is there")
    assert call.result().finish == "stop"
    await pair.client.control.resume()


async def test_a_call_during_a_pause_waits_or_is_refused_for_now(pair: Pair) -> None:
    caps = await pair.client.probe()
    await pair.client.control.pause("abort")
    call = asyncio.create_task(pair.client.generate(scripted([5, 6]), timeout_s=30))

    if caps.rejects_while_paused:
        with pytest.raises(Retryable) as caught:
            await call
        assert (caught.value.reason, caught.value.status) == ("engine_paused", 503)
    else:
        await wait_until(pair.has_calls, "the call has arrived")
        assert not call.done()
        assert (await pair.client.control.health()).waiting == 0
    await pair.client.control.resume()
    if not caps.rejects_while_paused:
        assert (await call).output_ids[:2] == [5, 6]


async def test_cached_tokens_come_in_blocks_and_salts_do_not_share(pair: Pair) -> None:
    if not pair.caches_prefixes:
        pytest.skip("keeps no prefixes")
    long = PROMPT * 4
    first = await pair.client.generate(a_request("a", prompt_ids=long, cache_salt="v1"), timeout_s=10)
    again = await pair.client.generate(a_request("b", prompt_ids=[*long, 5], cache_salt="v1"), timeout_s=10)
    other = await pair.client.generate(a_request("c", prompt_ids=long, cache_salt="v2"), timeout_s=10)

    assert (first.cached_tokens, other.cached_tokens) == (0, 0)
    assert again.cached_tokens == len(long) // 16 * 16


async def test_labels_of_weights_are_salts(pair: Pair) -> None:
    """vLLM refuses salts with a slash, and each of our labels has one: no call of any run was taken."""
    if not pair.caches_prefixes:
        pytest.skip("keeps no prefixes")
    long = PROMPT * 4
    first = await pair.client.generate(a_request("a", prompt_ids=long, cache_salt="run1/1.3"), timeout_s=10)
    again = await pair.client.generate(a_request("b", prompt_ids=[*long, 5], cache_salt="run1/1.3"), timeout_s=10)
    other = await pair.client.generate(a_request("c", prompt_ids=long, cache_salt="run1/1.4"), timeout_s=10)

    assert (first.cached_tokens, other.cached_tokens) == (0, 0)
    assert again.cached_tokens == len(long) // 16 * 16


async def test_a_flush_empties_the_cache_unless_calls_hold_it(pair: Pair) -> None:
    await pair.client.generate(a_request("a", prompt_ids=PROMPT * 2), timeout_s=10)
    call = asyncio.create_task(pair.client.generate(scripted(SCRIPT, "slow", delay_ms=20), timeout_s=30))
    await wait_until(pair.runs(1), "a call runs")

    refused = await pair.client.control.reset_cache()
    await pair.client.abort("slow")
    await call
    done = await pair.client.control.reset_cache()

    assert (refused, done) == (False, True)
    assert (await pair.client.generate(a_request("b", prompt_ids=PROMPT * 2), timeout_s=10)).cached_tokens == 0


async def test_what_does_not_fit_is_never_sent(ours: ScriptedPair) -> None:
    sent = len(ours.server.requests)

    with pytest.raises(Overlong):
        await ours.client.generate(a_request(prompt_ids=[5] * 32_768), timeout_s=10)

    assert len(ours.server.requests) == sent


async def test_one_place_left_gives_one_token(pair: Pair) -> None:
    length = (await pair.client.probe()).max_model_len

    result = await pair.client.generate(a_request(prompt_ids=[5] * (length - 1)), timeout_s=30)

    assert (len(result.output_ids), result.finish) == (1, "length")


async def test_an_id_beyond_the_vocabulary_is_refused(pair: Pair) -> None:
    with pytest.raises(Refused) as caught:
        await pair.client.generate(a_request(prompt_ids=[5, 99_999]), timeout_s=10)

    assert caught.value.status == 400


async def test_one_id_sent_twice_is_two_calls(pair: Pair) -> None:
    calls = [asyncio.create_task(pair.client.generate(scripted(SCRIPT, "same", delay_ms=20), timeout_s=30)) for _ in range(2)]
    await wait_until(pair.runs(2), "both calls run")

    await pair.client.abort("same")

    assert [result.finish for result in await asyncio.gather(*calls)] == ["abort", "abort"]
    await wait_until(pair.is_idle, "the server has no call")


async def test_the_version_is_what_was_set(pair: Pair) -> None:
    assert await pair.client.control.version() == "default"

    await pair.client.control.set_version("2.17")

    assert await pair.client.control.version() == "2.17"
    assert (await pair.client.generate(a_request(), timeout_s=10)).spans[0].version == "2.17"
