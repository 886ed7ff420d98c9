"""SGLang's bodies say everything that bears on sampling in its own words, and answers are checked entry by entry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.engines import InvalidResponse
from pipeline.messages import Sampling
from workers.llm import GenRequest, Span
from workers.llm.sglang_wire import generate_body, parse_generate
from workers.llm.wire import EngineFailed

REQUEST = GenRequest(
    request_id="j.1.0.0",
    prompt_ids=[1, 2],
    sampling=Sampling(temperature=0.7, top_p=0.9, min_p=0.05, max_tokens=99),
    max_tokens=7,
    seed=11,
    stop_token_ids=(9,),
    stop=("END",),
    cache_salt="1.4",
    priority=2,
    session_id="job-1",
    extra_args={"script": [5]},
)


def an_answer(**changes: Any) -> dict[str, Any]:
    """A good answer of three tokens; changes go into `meta_info`."""
    meta = {
        "id": "j.1.0.0;",
        "finish_reason": {"type": "stop", "matched": 9},
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "cached_tokens": 1,
        "weight_version": "run/1.4",
        "weight_versions": [{"version": "run/1.3", "start": 0, "end": 2}, {"version": "run/1.4", "start": 2, "end": 3}],
        "output_token_logprobs": [[-0.5, 5, None], [-0.25, 6, None], [0.0, 9, "<|im_end|>"]],
    }
    return {"text": "", "output_ids": [5, 6, 9], "prompt_token_ids": [1, 2], "meta_info": meta | changes}


def test_a_body_writes_out_all_that_bears_on_sampling() -> None:
    body = generate_body(REQUEST, "j.1.0.0", 1000)
    params = body["sampling_params"]

    assert (body["rid"], body["input_ids"], body["extra_key"], body["priority"], body["session_id"]) == (
        "j.1.0.0;",
        [1, 2],
        "1.4",
        2,
        "job-1",
    )
    assert (body["return_logprob"], body["logprob_start_len"], body["return_prompt_token_ids"], body["stream"]) == (True, -1, True, False)
    assert {name: params[name] for name in ("max_new_tokens", "temperature", "top_p", "min_p", "sampling_seed", "ignore_eos", "n")} == {
        "max_new_tokens": 7,
        "temperature": 0.7,
        "top_p": 0.9,
        "min_p": 0.05,
        "sampling_seed": 11,
        "ignore_eos": False,
        "n": 1,
    }
    assert (params["stop_token_ids"], params["stop"], params["no_stop_trim"], params["skip_special_tokens"]) == ([9], ["END"], True, False)
    assert params["custom_params"] == {"script": [5]}
    assert {"presence_penalty", "frequency_penalty", "repetition_penalty", "min_new_tokens"} <= params.keys()


@pytest.mark.parametrize(("ours", "theirs"), [(0, -1), (20, 20)])
def test_no_top_k_has_another_number_there(ours: int, theirs: int) -> None:
    body = generate_body(replace(REQUEST, sampling=Sampling(top_k=ours)), "j", 1000)

    assert body["sampling_params"]["top_k"] == theirs


def test_a_budget_is_cut_to_the_context() -> None:
    assert generate_body(REQUEST, "j", 5)["sampling_params"]["max_new_tokens"] == 3


def test_fields_that_are_not_asked_for_are_not_sent() -> None:
    plain = replace(REQUEST, cache_salt=None, priority=0, session_id=None, extra_args=None, stop=())

    body = generate_body(plain, "j", 1000)

    assert not {"extra_key", "priority", "session_id"} & body.keys()
    assert not {"custom_params", "stop"} & body["sampling_params"].keys()


def test_a_good_answer_is_read() -> None:
    answer = parse_generate(an_answer(), REQUEST, "j.1.0.0", "ids")

    assert (answer.output_ids, answer.logprobs, answer.finish, answer.stop_reason) == ([5, 6, 9], [-0.5, -0.25, 0.0], "stop", 9)
    assert answer.spans == (Span(version="run/1.3", start=0, end=2), Span(version="run/1.4", start=2, end=3))
    assert (answer.cached_tokens, answer.request_id, answer.shape) == (1, "j.1.0.0;", "triples")


def test_the_models_own_end_token_is_no_stop_of_the_request() -> None:
    answer = parse_generate(an_answer(), replace(REQUEST, stop_token_ids=()), "j.1.0.0", "ids")

    assert (answer.finish, answer.stop_reason) == ("stop", None)


def test_an_older_server_shows_how_long_the_prompt_was_and_no_spans() -> None:
    older = an_answer()
    del older["prompt_token_ids"], older["meta_info"]["weight_versions"]

    assert parse_generate(older, REQUEST, "j.1.0.0", "count").spans is None
    with pytest.raises(InvalidResponse, match="echo"):
        parse_generate(older, REQUEST, "j.1.0.0", "ids")
    older["meta_info"]["prompt_tokens"] = 1
    with pytest.raises(InvalidResponse, match="sent 2 prompt ids, the server says it read 1"):
        parse_generate(older, REQUEST, "j.1.0.0", "count")


@pytest.mark.parametrize("echo", ["ids", "count"])
def test_a_call_that_was_aborted_in_line_has_nothing_to_show(echo: str) -> None:
    aborted = {"text": "", "output_ids": [], "meta_info": {"id": "j.1.0.0;", "finish_reason": {"type": "abort", "message": "in line"}}}

    answer = parse_generate(aborted, REQUEST, "j.1.0.0", "ids" if echo == "ids" else "count")

    assert (answer.output_ids, answer.logprobs, answer.finish, answer.spans) == ([], [], "abort", None)


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"id": "j.1.0.0"}, "request_id"),
        ({"id": "j.1.0.01;"}, "request_id"),
        ({"finish_reason": "stop"}, "finish"),
        ({"finish_reason": None}, "finish"),
        ({"finish_reason": {"type": "stop", "matched": 6}}, "stop_reason"),
        ({"output_token_logprobs": [[-0.5, 6, None], [-0.25, 5, None], [0.0, 9, None]]}, "logprobs_ids"),
        ({"output_token_logprobs": [[-0.5, 5, None], [-0.25, 6, None]]}, "logprobs_length"),
        ({"output_token_logprobs": [[-0.5, 5, None], [None, 6, None], [0.0, 9, None]]}, "logprobs_finite"),
        ({"output_token_logprobs": [[-0.5, 5, None], [-9999.0, 6, None], [0.0, 9, None]]}, "logprobs_finite"),
        ({"output_token_logprobs": [[-0.5, 5], [-0.25, 6], [0.0, 9]]}, "logprobs_ids"),
        ({"output_token_logprobs": None}, "logprobs_length"),
        ({"weight_versions": [{"version": "a", "start": 0, "end": 2}]}, "spans"),
    ],
)
def test_what_contradicts_itself_is_not_believed(changes: dict[str, Any], check: str) -> None:
    with pytest.raises(InvalidResponse) as caught:
        parse_generate(an_answer(**changes), REQUEST, "j.1.0.0", "ids")

    assert caught.value.check == check


@pytest.mark.parametrize("payload", [None, 5, [], [an_answer()], {}, {"meta_info": {}}, {"output_ids": [5], "meta_info": None}])
def test_what_has_another_form_is_not_believed(payload: object) -> None:
    with pytest.raises(InvalidResponse):
        parse_generate(payload, REQUEST, "j.1.0.0", "ids")


def test_a_stop_that_nobody_asked_for_is_a_fault_of_the_engine() -> None:
    assert parse_generate(an_answer(finish_reason={"type": "stop", "matched": "END"}), REQUEST, "j.1.0.0", "ids").stop_reason == "END"

    with pytest.raises(EngineFailed, match="NaN happened"):
        parse_generate(an_answer(finish_reason={"type": "stop", "matched": "NaN happened"}), REQUEST, "j.1.0.0", "ids")
