"""What is asked for the logprobs of given tokens, and that no other answer is taken for them."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest

from pipeline.engines import InvalidResponse
from pipeline.messages import Sampling
from workers.llm.backend import Caps
from workers.llm.scoring_wire import PATHS, prompt_body, read_prompt, read_token, token_body

Endpoint = Literal["generate", "completions", "sglang"]
WARM = Sampling(temperature=0.7, top_p=0.9, top_k=7, min_p=0.1)
IDS = [11, 12, 13]


def at(endpoint: Endpoint) -> Caps:
    """A server of that endpoint."""
    return Caps(
        server_version="0",
        model="m",
        max_model_len=100,
        endpoint=endpoint,
        logprobs_shape="token_id",
        logprobs_mode="processed",
        has_spans=True,
        abort_path="",
        reports_version=True,
        can_pause=True,
        rejects_while_paused=False,
    )


def test_a_prompt_is_scored_without_sampling_and_without_what_a_cache_holds() -> None:
    generate, completions = (prompt_body(at(endpoint), IDS, "n1", "salt") for endpoint in ("generate", "completions"))

    assert generate["sampling_params"]["prompt_logprobs"] == completions["prompt_logprobs"] == 0
    assert generate["token_ids"] == completions["prompt"] == IDS
    assert generate["sampling_params"]["max_tokens"] == completions["max_tokens"] == 1
    assert generate["cache_salt"] == completions["cache_salt"] == "salt"
    assert generate["request_id"] == completions["request_id"] == "n1"


@pytest.mark.parametrize("endpoint", PATHS)
def test_a_token_is_scored_under_the_sampling_of_its_turn(endpoint: Endpoint) -> None:
    body = token_body(at(endpoint), IDS, 14, WARM, "n1", "salt")

    params = body if endpoint == "completions" else body["sampling_params"]
    assert {name: params[name] for name in ("temperature", "top_p", "top_k", "min_p")} == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
    }
    if endpoint == "sglang":
        assert (body["token_ids_logprob"], params["max_new_tokens"], body["extra_key"]) == ([14], 1, "salt")
    else:
        assert (params["logprob_token_ids"], params["logprobs"], params["max_tokens"]) == ([14, 14], 2, 1)


def prompt_answer(endpoint: Endpoint, entries: object, echo: list[int] | None = None) -> dict[str, Any]:
    """An answer with these prompt logprobs."""
    fields = {"prompt_logprobs": entries, "prompt_token_ids": IDS if echo is None else echo}
    return {"choices": [{}], **fields} if endpoint == "generate" else {"choices": [fields]}


@pytest.mark.parametrize("endpoint", ["generate", "completions"])
def test_logprobs_of_a_prompt_are_those_of_its_own_tokens(endpoint: Endpoint) -> None:
    entries = [None, {"12": {"logprob": -1.5}, "99": {"logprob": -0.1}}, {"13": {"logprob": -9999.0}}]

    assert read_prompt(at(endpoint), prompt_answer(endpoint, entries), IDS) == [-1.5, -math.inf]


GOOD = [None, {"12": {"logprob": -1.5}}, {"13": {"logprob": -2.5}}]


@pytest.mark.parametrize(
    "answer",
    [
        prompt_answer("generate", None),
        prompt_answer("generate", GOOD[:2]),
        prompt_answer("generate", [None, {"99": {"logprob": -1.0}}, GOOD[2]]),
        prompt_answer("generate", [None, {"12": {"logprob": None}}, GOOD[2]]),
        prompt_answer("generate", [None, {"12": {"logprob": math.nan}}, GOOD[2]]),
        prompt_answer("generate", [None, {"12": {"logprob": 0.5}}, GOOD[2]]),
        prompt_answer("generate", [None, {"12": {"logprob": True}}, GOOD[2]]),
        prompt_answer("generate", [None, {"12": -1.0}, GOOD[2]]),
        prompt_answer("generate", GOOD, echo=[11, 12, 14]),
        {"choices": []},
        {"choices": [1]},
        [],
        None,
    ],
    ids=repr,
)
def test_other_answers_to_a_prompt_are_not_believed(answer: object) -> None:
    with pytest.raises(InvalidResponse):
        read_prompt(at("generate"), answer, IDS)


TOKEN_ANSWERS: dict[str, tuple[Endpoint, object]] = {
    "ids": (
        "generate",
        {
            "choices": [
                {"logprobs": {"content": [{"top_logprobs": [{"token_id": 3, "logprob": -9.0}, {"token_id": 14, "logprob": -1.25}]}]}}
            ]
        },
    ),
    "texts": ("generate", {"choices": [{"logprobs": {"content": [{"top_logprobs": [{"token": "token_id:14", "logprob": -1.25}]}]}}]}),
    "arrays": ("completions", {"choices": [{"logprobs": {"top_logprobs": [{"token_id:3": -9.0, "token_id:14": -1.25}]}}]}),
    "triples": ("sglang", {"meta_info": {"output_token_ids_logprobs": [[[-1.25, 14, None]]]}}),
}


@pytest.mark.parametrize("shape", TOKEN_ANSWERS)
def test_the_logprob_of_a_token_is_read_from_every_shape(shape: str) -> None:
    endpoint, answer = TOKEN_ANSWERS[shape]

    assert read_token(at(endpoint), answer, 14) == -1.25


@pytest.mark.parametrize("shape", TOKEN_ANSWERS)
def test_the_logprob_of_another_token_is_not_taken_for_it(shape: str) -> None:
    endpoint, answer = TOKEN_ANSWERS[shape]

    for wrong in (answer, {"choices": [{"logprobs": None}]}, {}, [answer], None):
        with pytest.raises(InvalidResponse):
            read_token(at(endpoint), wrong, 15)
