"""Bodies say everything that bears on sampling, and answers are checked entry by entry."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines import InvalidResponse
from pipeline.engines.vllm import abort_ids
from pipeline.messages import Sampling
from workers.llm import GenRequest, Span
from workers.llm.ratio import ratio_bias
from workers.llm.validate import check_logprobs, check_spans
from workers.llm.vllm_wire import completions_body, generate_body, parse_completions, parse_generate

REQUEST = GenRequest(
    request_id="j.1.0.0",
    prompt_ids=[1, 2],
    sampling=Sampling(temperature=0.7, top_p=0.9, top_k=20, min_p=0.05, max_tokens=99),
    max_tokens=7,
    seed=11,
    stop_token_ids=(9,),
    cache_salt="1.4",
    extra_args={"script": [5]},
)


def test_a_body_writes_out_all_that_bears_on_sampling() -> None:
    body = generate_body(REQUEST, "j.1.0.0", "m")
    sampling = body["sampling_params"]

    assert (body["token_ids"], body["cache_salt"], body["return_token_ids"], body["stream"]) == ([1, 2], "1.4", True, False)
    assert sampling["max_tokens"] == 7
    assert {name: sampling[name] for name in ("temperature", "top_p", "top_k", "min_p", "seed", "logprobs")} == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.05,
        "seed": 11,
        "logprobs": 0,
    }
    assert (sampling["skip_special_tokens"], sampling["stop_token_ids"], sampling["extra_args"]) == (False, [9], {"script": [5]})
    assert {"presence_penalty", "frequency_penalty", "repetition_penalty"} <= sampling.keys()


def test_the_older_endpoint_is_asked_for_the_same() -> None:
    body = completions_body(REQUEST, "j.1.0.0", "m")

    sampled = generate_body(REQUEST, "j.1.0.0", "m")["sampling_params"]
    del sampled["extra_args"]
    assert {name: body[name] for name in sampled} == sampled
    assert (body["prompt"], body["return_token_ids"], body["return_tokens_as_token_ids"]) == ([1, 2], True, True)
    assert body["vllm_xargs"] == {"script": [5]}


def test_fields_that_are_not_asked_for_are_not_sent() -> None:
    plain = replace(REQUEST, cache_salt=None, extra_args=None, priority=0)

    body = generate_body(plain, "j", "m")

    assert not {"cache_salt", "priority"} & body.keys()
    assert not {"stop", "extra_args"} & body["sampling_params"].keys()


def test_calls_are_aborted_by_the_name_the_server_gave_them() -> None:
    assert abort_ids("generate", "x") == ["generate-tokens-x"]
    assert abort_ids("completions", "x") == ["cmpl-x-0", "cmpl-x"]


def an_answer(**changes: Any) -> dict[str, Any]:
    """A good answer of three tokens."""
    choice = {
        "token_ids": [5, 6, 9],
        "finish_reason": "stop",
        "stop_reason": None,
        "logprobs": {"content": [{"token_id": id_, "logprob": -0.5} for id_ in (5, 6, 9)]},
        "weight_versions": [{"version": "1.4", "start": 0, "end": 3}],
    }
    choice.update(changes)
    return {"request_id": "generate-tokens-j.1.0.0", "prompt_token_ids": [1, 2], "choices": [choice]}


def test_a_good_answer_is_believed() -> None:
    answer = parse_generate(an_answer(), REQUEST)

    assert (answer.output_ids, answer.logprobs, answer.finish) == ([5, 6, 9], [-0.5] * 3, "stop")
    assert answer.spans == (Span(version="1.4", start=0, end=3),)
    assert answer.cached_tokens is None


@pytest.mark.parametrize("nothing", [None, [], {}, {"choices": []}, {"choices": [7]}, "text", {"choices": [{}]}])
def test_what_is_no_answer_is_not_believed(nothing: object) -> None:
    for parse in (parse_generate, parse_completions):
        with pytest.raises(InvalidResponse):
            parse(nothing, REQUEST)


@pytest.mark.parametrize("ids", [[5, 6, True], [5, 6, 9.0], [5, 6, "9"], [5, 6, 2**32], None, {}])
def test_ids_that_are_no_ids_are_not_believed(ids: object) -> None:
    with pytest.raises(InvalidResponse):
        parse_generate(an_answer(token_ids=ids), REQUEST)


def test_an_aborted_call_may_have_no_tokens_and_no_logprobs() -> None:
    answer = parse_generate(an_answer(token_ids=[], logprobs=None, finish_reason="abort", weight_versions=[]), REQUEST)

    assert (answer.output_ids, answer.logprobs, answer.finish, answer.spans) == ([], [], "abort", ())


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_no_other_call_may_be_empty(finish: str) -> None:
    with pytest.raises(InvalidResponse, match="no_tokens"):
        parse_generate(an_answer(token_ids=[], logprobs={"content": []}, finish_reason=finish, weight_versions=[]), REQUEST)


@pytest.mark.parametrize("name", ["token_id:x", "6", "token_id:-6", "token_id:7", None])
def test_logprobs_named_by_text_must_name_their_token(name: object) -> None:
    content = [{"token": f"token_id:{id_}", "logprob": -0.5} for id_ in (5, 6, 9)]
    assert parse_generate(an_answer(logprobs={"content": content}), REQUEST).shape == "token_text"

    content[1] = {"token": name, "logprob": -0.5}
    with pytest.raises(InvalidResponse, match="logprobs_ids"):
        parse_generate(an_answer(logprobs={"content": content}), REQUEST)


@given(st.lists(st.floats(-9000, 0, exclude_min=True), max_size=20))
def test_logprobs_pass_unchanged(values: list[float]) -> None:
    assert check_logprobs(values, len(values)) == values


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), float("-inf"), -9999.0, 0.1, "-0.5", True, [0.0]])
def test_a_logprob_that_is_no_logprob_is_named_by_its_place(value: object) -> None:
    with pytest.raises(InvalidResponse, match="at 1"):
        check_logprobs([-0.1, value, -0.2], 3)


@pytest.mark.parametrize("label", ["", "1.0\n", "\x1b[31m", "7" * 201])
def test_a_label_that_no_record_takes_is_refused_with_the_answer(label: str) -> None:
    """It was found when the trajectory was complete, and cost all of it."""
    with pytest.raises(InvalidResponse, match="version: expected a printable label"):
        check_spans([{"version": label, "start": 0, "end": 1}], 1)


def test_certainty_is_a_real_logprob() -> None:
    assert check_logprobs([0.0, -0.3, 0], 3) == [0.0, -0.3, 0.0]


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(-2, 2))
def test_spans_must_cover_the_output_exactly(lengths: list[int], off: int) -> None:
    edges = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    raw = [{"version": f"v{i}", "start": a, "end": b} for i, (a, b) in enumerate(itertools.pairwise(edges))]
    n_tokens = max(0, sum(lengths) + off)

    if n_tokens == sum(lengths):
        assert sum(span.end - span.start for span in check_spans(raw, n_tokens)) == n_tokens
    else:
        with pytest.raises(InvalidResponse):
            check_spans(raw, n_tokens)


@pytest.mark.parametrize(
    ("mode", "sampling", "biased_by"),
    [
        ("processed", Sampling(), ""),
        ("raw", Sampling(), ""),
        ("processed", Sampling(temperature=0.7), ""),
        ("raw", Sampling(temperature=0.7), "temperature"),
        ("raw", Sampling(repetition_penalty=1.1), "repetition_penalty"),
        ("processed", Sampling(top_p=0.9), "top_p"),
        ("processed", Sampling(top_k=50), "top_k"),
        ("processed", Sampling(min_p=0.1), "min_p"),
        ("processed", Sampling(temperature=0.0), "greedy"),
    ],
)
def test_a_biased_ratio_is_named(mode: str, sampling: Sampling, biased_by: str) -> None:
    why = ratio_bias("raw" if mode == "raw" else "processed", sampling)

    assert biased_by in why
    assert bool(why) == bool(biased_by)
