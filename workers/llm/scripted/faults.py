"""Faults on demand: what a server does when it does not do what it should.

A fault is armed for a number of requests and a path, then gone. `corrupt` bends a good answer in one way, so that every check of the
client can be seen to fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from workers.llm.vllm_wire import GENERATE_PREFIX, TOKEN_TEXT_PREFIX

Body = dict[str, Any]
Kind = Literal["status", "disconnect", "break_off", "hang", "corrupt", "restart"]
Corruption = Literal[
    "no_echo",
    "other_echo",
    "shorter_logprobs",
    "no_logprobs",
    "null_logprob",
    "infinite_logprob",
    "sentinel_logprob",
    "positive_logprob",
    "other_token_id",
    "unknown_finish",
    "error_finish",
    "gap_in_spans",
    "short_spans",
    "two_choices",
    "negative_id",
    "too_many_tokens",
    "other_request_id",
    "not_json",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    `status` answers with that status; `disconnect` closes the connection before any answer; `break_off` in the middle of one; `hang`
    never answers; `corrupt` bends the answer. `restart`: the server ended, and the request meets the one that was started anew. Only
    generation is broken off or corrupted.
    """

    kind: Kind
    path: str = "/inference/v1/generate"
    times: int = 1
    status: int = 500
    message: str = "made to fail"
    retry_after_s: int | None = None
    corruption: Corruption = "null_logprob"


class Faults:
    """The faults that are armed, in order."""

    def __init__(self) -> None:
        self._armed: list[Fault] = []

    def arm(self, fault: Fault) -> None:
        """From now on, for `fault.times` requests of its path."""
        if fault.kind not in get_args(Kind) or fault.corruption not in get_args(Corruption) or fault.times < 1:
            raise ValueError(f"no such fault: {fault}")
        self._armed.append(fault)

    def take(self, path: str) -> Fault | None:
        """The fault that this request meets, counted down."""
        for place, fault in enumerate(self._armed):
            if fault.path == path:
                if fault.times > 1:
                    self._armed[place] = replace(fault, times=fault.times - 1)
                else:
                    del self._armed[place]
                return fault
        return None


def corrupt(answer: Body, how: Corruption) -> Body | bytes:
    """`answer`, of any endpoint, bent in one way; bytes where it is no JSON any more."""
    if how == "not_json":
        return b'{"choices": [{"token_ids": [1, 2, '
    choice = answer["choices"][0]
    echo_of = answer if "prompt_token_ids" in answer else choice
    match how:
        case "no_echo":
            del echo_of["prompt_token_ids"]
        case "other_echo":
            echo_of["prompt_token_ids"] = [*echo_of["prompt_token_ids"][:-1], echo_of["prompt_token_ids"][-1] ^ 1]
        case "no_logprobs":
            choice["logprobs"] = None
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
