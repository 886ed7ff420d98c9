"""Answers of vLLM bent on purpose, each in one way, in every shape that they have."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.engines.vllm import GENERATE_PREFIX
from workers.llm.scripted.faults import Corruption
from workers.llm.scripted.http import Body
from workers.llm.vllm_wire import TOKEN_TEXT_PREFIX


def corrupt(answer: Body, how: Corruption) -> Body | bytes:
    """`answer`, of any endpoint, bent in one way; bytes where it is no JSON any more."""
    if how == "not_json":
        return b'{"choices": [{"token_ids": [1, 2, '
    if how == "html":
        return b"<html><body>Welcome</body></html>"
    choice = answer["choices"][0]
    echo_of = answer if "prompt_token_ids" in answer else choice
    match how:
        case "no_echo":
            del echo_of["prompt_token_ids"]
        case "other_echo":
            echo_of["prompt_token_ids"] = [*echo_of["prompt_token_ids"][:-1], echo_of["prompt_token_ids"][-1] ^ 1]
        case "shorter_echo":
            echo_of["prompt_token_ids"] = echo_of["prompt_token_ids"][:-1]
        case "no_logprobs":
            choice["logprobs"] = None
        case "swapped_logprobs":
            for values in choice["logprobs"].values():
                values[-1], values[-2] = values[-2], values[-1]
        case "shorter_logprobs":
            for values in choice["logprobs"].values():
                del values[-1]
        case "null_logprob":
            _each_logprob(choice, lambda value: None)
        case "infinite_logprob":
            _each_logprob(choice, lambda value: "-Infinity")
        case "sentinel_logprob":
            _each_logprob(choice, lambda value: -9999.0)
        case "positive_logprob":
            _each_logprob(choice, lambda value: 0.5)
        case "other_token_id":
            _rename_last(choice)
        case "unknown_finish":
            choice["finish_reason"] = "banana"
        case "error_finish":
            choice["finish_reason"] = "error"
        case "gap_in_spans":
            n = len(choice["token_ids"])
            choice["weight_versions"] = [{"version": "a", "start": 0, "end": n - 2}, {"version": "b", "start": n - 1, "end": n}]
        case "short_spans":
            choice["weight_versions"] = [{"version": "a", "start": 0, "end": len(choice["token_ids"]) - 1}]
        case "two_choices":
            answer["choices"].append(choice)
        case "negative_id":
            choice["token_ids"] = [-1, *choice["token_ids"][1:]]
        case "too_many_tokens":
            _repeat(choice, 200)
        case "other_request_id":
            answer["request_id" if "request_id" in answer else "id"] = GENERATE_PREFIX + "somebody-else"
    return answer


def dictate_logprobs(answer: Body, request: Body) -> None:
    """Put the logprobs that a request's extra arguments name in place of the engine's, whatever they are; null leaves all of them out."""
    extra = request.get("sampling_params", request).get("extra_args") or request.get("vllm_xargs") or {}
    if not isinstance(extra, dict) or "logprobs" not in extra:
        return
    values, choice = extra["logprobs"], answer["choices"][0]
    if values is None:
        choice["logprobs"] = None
    elif "content" in choice["logprobs"]:
        by_token = choice["logprobs"]["content"]
        choice["logprobs"]["content"] = [{**by_token[min(at, len(by_token) - 1)], "logprob": value} for at, value in enumerate(values)]
    else:
        choice["logprobs"]["token_logprobs"] = values


def _each_logprob(choice: Body, change: Callable[[float], object]) -> None:
    """Change the last logprob, wherever this shape has it."""
    logprobs = choice["logprobs"]
    if "content" in logprobs:
        logprobs["content"][-1]["logprob"] = change(logprobs["content"][-1]["logprob"])
    else:
        logprobs["token_logprobs"] = [*logprobs["token_logprobs"][:-1], change(logprobs["token_logprobs"][-1])]


def _rename_last(choice: Body) -> None:
    other = choice["token_ids"][-1] + 1
    logprobs = choice["logprobs"]
    if "content" not in logprobs:
        logprobs["tokens"][-1] = f"{TOKEN_TEXT_PREFIX}{other}"
    elif "token_id" in logprobs["content"][-1]:
        logprobs["content"][-1]["token_id"] = other
    else:
        logprobs["content"][-1]["token"] = f"{TOKEN_TEXT_PREFIX}{other}"


def _repeat(choice: Body, times: int) -> None:
    choice["token_ids"] = choice["token_ids"] * times
    for name, values in choice["logprobs"].items():
        choice["logprobs"][name] = values * times
    if "weight_versions" in choice:
        choice["weight_versions"] = [{"version": "a", "start": 0, "end": len(choice["token_ids"])}]
