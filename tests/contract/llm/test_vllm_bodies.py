"""What vLLM answers to bodies that our client does not send, or not in this form: the scripted server and the original agree.

The table was taken from vLLM 0.32.0. Who writes a client against the scripted server meets the same refusals, stops and budgets there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.contract.llm.conftest import PROMPT, Pair, real_pair, scripted_pair
from tests.vllm_server import REAL
from workers.llm.tokenizer import load

GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"
ABORT, ABORT_DEV = "/inference/v1/abort_requests", "/abort_requests"
END, END_OF_TEXT = load().special("<|im_end|>"), load().special("<|endoftext|>")
SAYS = {"script": [300, 301]}
Body = dict[str, Any]


def generate(sampling: Body | None = None, **top: object) -> tuple[str, Body]:
    sampled = {"max_tokens": 3, "seed": 1, "logprobs": 0, **(sampling or {})}
    return GENERATE, {"token_ids": PROMPT, "sampling_params": sampled, "return_token_ids": True, **top}


def complete(**fields: object) -> tuple[str, Body]:
    return COMPLETIONS, {"prompt": PROMPT, "max_tokens": 3, "seed": 1, "logprobs": 0, "return_token_ids": True, **fields}


REFUSED: dict[str, tuple[str, Body | list[int]]] = {
    "no sampling": (GENERATE, {"token_ids": [5]}),
    "no prompt": (GENERATE, {"sampling_params": {}}),
    "empty prompt": (GENERATE, {"token_ids": [], "sampling_params": {}}),
    "empty prompt of completions": complete(prompt=[]),
    "prompt of texts": (GENERATE, {"token_ids": ["a"], "sampling_params": {}}),
    "negative id": (GENERATE, {"token_ids": [-1], "sampling_params": {}}),
    "id beyond the vocabulary": (GENERATE, {"token_ids": [1740], "sampling_params": {}}),
    "id beyond the vocabulary of completions": complete(prompt=[1740]),
    "no token wanted": generate({"max_tokens": 0}),
    "half a token wanted": generate({"max_tokens": 2.5}),
    "negative temperature": generate({"temperature": -1}),
    "negative temperature of completions": complete(temperature=-1),
    "temperature in words": generate({"temperature": "hot"}),
    "top_p of 0": generate({"top_p": 0}),
    "top_p of 2": generate({"top_p": 2}),
    "top_p of 2 of completions": complete(top_p=2),
    "top_k of -2": generate({"top_k": -2}),
    "min_p of 2": generate({"min_p": 2}),
    "presence penalty of 3": generate({"presence_penalty": 3}),
    "repetition penalty of 0": generate({"repetition_penalty": 0}),
    "seed in words": generate({"seed": "a"}),
    "empty salt": generate(cache_salt=""),
    "long salt": generate(cache_salt="x" * 129),
    "salt with a slash": generate(cache_salt="run1/1.3"),
    "salt that is a number": generate(cache_salt=3),
    "empty salt of completions": complete(cache_salt=""),
    "priority in words": generate(priority="a"),
    "nothing allowed": generate({"allowed_token_ids": []}),
    "allowed beyond the vocabulary": generate({"allowed_token_ids": [99_999]}),
    "stop ids that are texts": generate({"stop_token_ids": ["a"]}),
    "empty stop string": generate({"stop": [""]}),
    "all logprobs": generate({"logprobs": -1}),
    "99 logprobs": generate({"logprobs": 99}),
    "id that is a number": generate(request_id=5),
    "arguments in a list": generate({"extra_args": [1]}),
    "arguments in a list of completions": complete(vllm_xargs=[1]),
    "list for a body": (GENERATE, [1]),
    "unknown pause": ("/pause?mode=banana", {}),
    "label that is a number": ("/update_weight_version", {"new_version": 3}),
    "no label": ("/update_weight_version", {}),
    "abort of what": (ABORT, {}),
}

ENDS: dict[str, tuple[tuple[str, Body], list[int], str, object]] = {
    "end token": (generate({"extra_args": SAYS, "max_tokens": 9}), [300, 301, END], "stop", None),
    "end token of completions": (complete(vllm_xargs=SAYS, max_tokens=9), [300, 301, END], "stop", None),
    "empty script": (generate({"extra_args": {"script": []}}), [END], "stop", None),
    "budget": (generate({"extra_args": SAYS, "max_tokens": 2}), [300, 301], "length", None),
    "stop token": (generate({"extra_args": SAYS, "max_tokens": 9, "stop_token_ids": [301]}), [300, 301], "stop", 301),
    "end token as stop token": (generate({"extra_args": SAYS, "max_tokens": 9, "stop_token_ids": [END]}), [300, 301, END], "stop", None),
    "other end token": (generate({"extra_args": {"script": [300, END_OF_TEXT, 5]}}), [300, END_OF_TEXT], "stop", END_OF_TEXT),
    "end token ignored": (generate({"extra_args": SAYS, "max_tokens": 5, "ignore_eos": True}), [300, 301, END, END, END], "length", None),
    "unknown fields": (generate({"extra_args": SAYS, "max_tokens": 9, "nope": 1}, nope=2), [300, 301, END], "stop", None),
    "no budget named": (
        (GENERATE, {"token_ids": PROMPT, "sampling_params": {"extra_args": SAYS}, "return_token_ids": True}),
        [300, 301, END],
        "stop",
        None,
    ),
}


@pytest.fixture(params=["generate-0.32", pytest.param("vllm-generate", marks=REAL)])
async def vllm(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    """The scripted server on the wire of 0.32, and vLLM."""
    if request.param == "generate-0.32":
        async with scripted_pair(request.param, tmp_path) as made:
            yield made
    else:
        async with real_pair(request.param, request.getfixturevalue("vllm_server")) as found:
            yield found


async def post(pair: Pair, path: str, body: object) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(pair.client.url + path, json=body) as response:
        return response.status, await response.json(content_type=None)


@pytest.mark.parametrize("what", REFUSED)
async def test_what_is_wrong_is_refused(vllm: Pair, what: str) -> None:
    status, answer = await post(vllm, *REFUSED[what])

    assert status == 400
    assert answer["error"]["code"] == 400
    assert answer["error"]["message"]


@pytest.mark.parametrize("what", ENDS)
async def test_a_call_ends_where_it_should_and_says_why(vllm: Pair, what: str) -> None:
    (path, body), ids, finish, reason = ENDS[what]

    status, answer = await post(vllm, path, body)

    assert status == 200
    choice = answer["choices"][0]
    assert (choice["token_ids"], choice["finish_reason"], choice["stop_reason"]) == (ids, finish, reason)


@pytest.mark.parametrize(("path", "model"), [(GENERATE, "token_ids"), (COMPLETIONS, "prompt")], ids=["generate", "completions"])
async def test_another_model_is_not_found(vllm: Pair, path: str, model: str) -> None:
    status, answer = await post(vllm, path, {model: PROMPT, "model": "nope", "sampling_params": {"max_tokens": 1}, "max_tokens": 1})

    assert (status, answer["error"]["type"]) == (404, "NotFoundError")


async def test_aborts_that_name_nothing_change_nothing_and_are_not_refused(vllm: Pair) -> None:
    said = [
        await post(vllm, ABORT, {"request_ids": []}),
        await post(vllm, ABORT, {"request_ids": ["generate-tokens-nobody"]}),
        await post(vllm, ABORT, {"request_ids": "nobody"}),
        await post(vllm, ABORT_DEV, {"request_ids": ["nobody"]}),
        await post(vllm, ABORT_DEV, {}),
    ]

    assert [status for status, _ in said] == [200] * 5
    assert [answer for _, answer in said[3:]] == [{"status": "aborted", "aborted": 1}, {"status": "aborted", "aborted": 0}]


async def test_resuming_what_runs_and_flushing_what_is_empty_do_no_harm(vllm: Pair) -> None:
    assert await post(vllm, "/resume", None) == (200, {"status": "resumed"})
    assert await post(vllm, "/reset_prefix_cache", None) == (200, {"success": True})
