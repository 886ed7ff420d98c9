"""How a server is asked for the logprobs of given tokens, as pure functions.

Two questions, since vLLM has two answers:

    the prompt's tokens     `prompt_logprobs: 0`: one call for a whole segment. These logprobs are raw whatever `--logprobs-mode` says:
                            prompt tokens pass no sampler. Such a call does not read the prefix cache.
    a token at the end      `logprob_token_ids` with `max_tokens: 1`: the logprob of that token under the sampling of the call, in the
                            server's mode, whatever is sampled beside it. One call a token, against any vocabulary.

SGLang answers the second (`token_ids_logprob`).

Traps: vLLM's `logprobs` must equal the number of `logprob_token_ids`, and no more entries than that come back on the ids wire, the sampled
token first; so the token is asked for twice. vLLM writes -9999 for a probability of 0.
"""

from __future__ import annotations

import math

from pipeline.engines.errors import InvalidResponse
from pipeline.messages import Sampling
from workers.llm import sglang_wire, validate
from workers.llm.backend import Caps, GenRequest
from workers.llm.validate import HIGHEST_LOGPROB, LOWEST_LOGPROB
from workers.llm.vllm_wire import COMPLETIONS, GENERATE, TOKEN_TEXT_PREFIX, completions_body, generate_body
from workers.llm.wire import Body

PATHS = {"generate": GENERATE, "completions": COMPLETIONS, "sglang": sglang_wire.GENERATE}
"""By the endpoint of the server."""


def prompt_body(caps: Caps, ids: list[int], name: str, salt: str) -> Body:
    """Asks a vLLM for the raw logprobs of the tokens of a prompt."""
    request = _request(ids, Sampling(), name, salt)
    if caps.endpoint == "generate":
        body = generate_body(request, name, caps.model)
        body["sampling_params"]["prompt_logprobs"] = 0
        return body
    return {**completions_body(request, name, caps.model), "prompt_logprobs": 0}


def read_prompt(caps: Caps, payload: object, ids: list[int]) -> list[float]:
    """Logprobs of the tokens of the prompt but the first, nats; -inf where the server gives no probability.

    Raises:
        InvalidResponse
    """
    top, choice = _single_choice(payload)
    where = top if caps.endpoint == "generate" else choice
    validate.check_echo(ids, where.get("prompt_token_ids"))
    entries = where.get("prompt_logprobs")
    if not isinstance(entries, list) or len(entries) != len(ids):
        n_entries = len(entries) if isinstance(entries, list) else "no"
        raise InvalidResponse("prompt_logprobs", f"expected {len(ids)} entries, got {n_entries}")
    found = []
    for place in range(1, len(ids)):
        entry = entries[place]
        of_id = entry.get(str(ids[place])) if isinstance(entry, dict) else None
        found.append(_number(of_id.get("logprob") if isinstance(of_id, dict) else None, f"prompt token {place}"))
    return found


def token_body(caps: Caps, ids: list[int], token: int, sampling: Sampling, name: str, salt: str) -> Body:
    """Asks for the logprob of one token behind some ids, under a sampling."""
    request = _request(ids, sampling, name, salt)
    asked = {"logprobs": 2, "logprob_token_ids": [token, token]}
    match caps.endpoint:
        case "sglang":
            return {**sglang_wire.generate_body(request, name, caps.max_model_len), "token_ids_logprob": [token]}
        case "generate":
            body = generate_body(request, name, caps.model)
            body["sampling_params"].update(asked)
            return body
        case "completions":
            return {**completions_body(request, name, caps.model), **asked}


def read_token(caps: Caps, payload: object, token: int) -> float:
    """That logprob, nats; -inf where the sampling leaves the token no probability.

    Raises:
        InvalidResponse
    """
    if caps.endpoint == "sglang":
        match payload:
            case {"meta_info": {"output_token_ids_logprobs": [[[value, int(id_), *_]]]}} if id_ == token:
                return _number(value, f"token {token}")
        raise InvalidResponse("token_ids_logprob", f"expected a logprob of token {token}, got {payload!r:.200}")
    logprobs = _single_choice(payload)[1].get("logprobs")
    match logprobs:
        case {"content": [{"top_logprobs": [*tops]}]}:
            for top in tops:
                if isinstance(top, dict) and (top.get("token_id") == token or top.get("token") == f"{TOKEN_TEXT_PREFIX}{token}"):
                    return _number(top.get("logprob"), f"token {token}")
        case {"top_logprobs": [dict(named)]} if f"{TOKEN_TEXT_PREFIX}{token}" in named:
            return _number(named[f"{TOKEN_TEXT_PREFIX}{token}"], f"token {token}")
    raise InvalidResponse("logprob_token_ids", f"expected a logprob of token {token}, got {logprobs!r:.200}")


def _request(ids: list[int], sampling: Sampling, name: str, salt: str) -> GenRequest:
    return GenRequest(request_id=name, prompt_ids=ids, sampling=sampling, max_tokens=1, seed=0, cache_salt=salt)


def _single_choice(payload: object) -> tuple[Body, Body]:
    choices = payload.get("choices") if isinstance(payload, dict) else None
    if not isinstance(payload, dict) or not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise InvalidResponse("choices", f"expected one choice, got {choices!r:.80}")
    return payload, choices[0]


def _number(value: object, what: str) -> float:
    if type(value) not in (float, int) or not isinstance(value, float | int) or math.isnan(value) or value > HIGHEST_LOGPROB:
        raise InvalidResponse("prompt_logprobs", f"logprob of {what} is {value!r}, expected a number of at most 0")
    return float(value) if value > LOWEST_LOGPROB else -math.inf
