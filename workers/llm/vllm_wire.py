"""The bodies that vLLM takes and gives, as pure functions: `/inference/v1/generate` (two shapes) and `/v1/completions`.

vLLM ignores fields it does not know, so a misspelt one would silently change the sampling: bodies are built here, from typed records,
and nowhere else. Everything that bears on sampling is written out, because defaults differ between endpoints and models.

What comes back is checked piece by piece (`validate.py`) before an `Answer` exists. Logprobs of `generate` name their token by an
integer `token_id` since 0.32, by the text `token_id:N` before; both are compared with the ids, one by one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from pipeline.engines.errors import InvalidResponse
from pipeline.engines.vllm import COMPLETIONS_PREFIX, GENERATE_PREFIX
from workers.llm import validate
from workers.llm.backend import GenRequest, LogprobsShape
from workers.llm.vllm_images import features
from workers.llm.wire import Answer, Body, EngineFailed

GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"
TOKEN_TEXT_PREFIX = "token_id:"
MAX_SALT = 128
NOT_IN_SALT = frozenset("@/\\\0")
"""What vLLM refuses in a salt."""


def salt_on_the_wire(salt: str) -> str:
    """A salt as vLLM takes it: short, and without what names files. Salts that differ stay different; labels of weights have a slash."""
    if len(salt) <= MAX_SALT and NOT_IN_SALT.isdisjoint(salt):
        return salt
    return hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def generate_body(request: GenRequest, wire_id: str, model: str) -> Body:
    """Body of `POST /inference/v1/generate`."""
    sampling: Body = {**_sampling(request), "logprobs": 0, **_experts_from(request)}
    if request.extra_args:
        sampling["extra_args"] = dict(request.extra_args)
    body: Body = {
        "request_id": wire_id,
        "model": model,
        "token_ids": _as_list(request.prompt_ids),
        "sampling_params": sampling,
        "return_token_ids": True,
        "stream": False,
    }
    if request.images:
        body["features"] = features(request.images)
    return _with_common(body, request)


def completions_body(request: GenRequest, wire_id: str, model: str) -> Body:
    """Body of `POST /v1/completions` that asks for ids."""
    body: Body = {
        "request_id": wire_id,
        "model": model,
        "prompt": _as_list(request.prompt_ids),
        **_sampling(request),
        **_experts_from(request),
        "logprobs": 0,
        "n": 1,
        "echo": False,
        "stream": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "return_weight_versions": True,
    }
    if request.extra_args:
        body["vllm_xargs"] = dict(request.extra_args)
    return _with_common(body, request)


def _as_list(ids: Sequence[int]) -> list[int]:
    """For JSON; a long list is not copied."""
    return ids if isinstance(ids, list) else list(ids)


def _sampling(request: GenRequest) -> Body:
    sampling = request.sampling
    fields: Body = {
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "stop_token_ids": list(request.stop_token_ids),
        "skip_special_tokens": False,
    }
    if request.stop:
        fields["stop"] = list(request.stop)
    return fields


def _experts_from(request: GenRequest) -> Body:
    """Which experts need not be sent again; a server that does not know the field sends all."""
    return {"routed_experts_prompt_start": request.experts_from} if request.experts is not None and request.experts_from else {}


def experts_in(payload: object) -> object:
    """What stands for experts in an answer that was parsed; None = nothing."""
    return _single_choice(payload)[1].get("routed_experts")


def _with_common(body: Body, request: GenRequest) -> Body:
    if request.cache_salt is not None:
        body["cache_salt"] = salt_on_the_wire(request.cache_salt)
    if request.priority:
        body["priority"] = request.priority
    return body


def parse_generate(payload: object, request: GenRequest, name: str = "") -> Answer:
    """The checked answer of `/inference/v1/generate`.

    Args:
        name: under which it was asked for, when that is not the request's id.

    Raises:
        InvalidResponse: any check failed.
        EngineFailed: the engine says that it failed.
    """
    top, choice = _single_choice(payload)
    validate.check_echo(request.prompt_ids, top.get("prompt_token_ids"))
    ids = validate.check_ids(choice.get("token_ids"), "output ids")
    raw = choice.get("logprobs")
    content = raw.get("content") if isinstance(raw, dict) else None
    if content is None and not ids and choice.get("finish_reason") == "abort":
        content = []
    if not isinstance(content, list):
        raise InvalidResponse("logprobs_length", f"{len(ids)} tokens but no logprobs at all")
    if len(content) != len(ids):
        raise InvalidResponse("logprobs_length", f"{len(ids)} tokens but {len(content)} logprobs")
    try:
        named, values = [entry["token_id"] for entry in content], [entry["logprob"] for entry in content]
    except (TypeError, LookupError):
        named, values = [], []
    if named == ids and ids and set(map(type, named)) == {int}:
        return _answer(top, choice, request, name, ids, values, "token_id")
    values, shape = _named_entries(ids, content)
    return _answer(top, choice, request, name, ids, values, shape)


def _named_entries(ids: list[int], content: list[object]) -> tuple[list[object], LogprobsShape]:
    """The logprobs of entries that do not all name their token by its id, or of which one names another."""
    shape: LogprobsShape = "token_id"
    values: list[object] = []
    for position, (id_, entry) in enumerate(zip(ids, content, strict=True)):
        if not isinstance(entry, dict):
            raise InvalidResponse("logprobs_ids", f"entry at {position} is {entry!r}, expected an object")
        named: object = entry.get("token_id")
        if named is None:
            shape = "token_text"
            named = _id_in_text(entry.get("token"))
        if named != id_ or type(named) is not int:
            raise InvalidResponse("logprobs_ids", f"logprob at {position} is of token {named!r}, the output has {id_}")
        values.append(entry.get("logprob"))
    return values, shape


def parse_completions(payload: object, request: GenRequest, name: str = "") -> Answer:
    """The checked answer of `/v1/completions`.

    Args:
        name: under which it was asked for, when that is not the request's id.

    Raises:
        InvalidResponse: any check failed.
        EngineFailed: the engine says that it failed.
    """
    top, choice = _single_choice(payload)
    validate.check_echo(request.prompt_ids, choice.get("prompt_token_ids"))
    ids = validate.check_ids(choice.get("token_ids"), "output ids")
    raw = choice.get("logprobs")
    if raw is None and not ids and choice.get("finish_reason") == "abort":
        raw = {"tokens": [], "token_logprobs": []}
    if not isinstance(raw, dict) or not isinstance(raw.get("tokens"), list) or not isinstance(raw.get("token_logprobs"), list):
        raise InvalidResponse("logprobs_length", f"{len(ids)} tokens but no logprobs at all")
    names = raw["tokens"]
    if len(names) != len(ids):
        raise InvalidResponse("logprobs_length", f"{len(ids)} tokens but {len(names)} logprobs")
    for position, (id_, token) in enumerate(zip(ids, names, strict=True)):
        if _id_in_text(token) != id_:
            raise InvalidResponse("logprobs_ids", f"logprob at {position} is of {token!r}, the output has {id_}")
    return _answer(top, choice, request, name, ids, raw["token_logprobs"], "arrays")


def _answer(
    top: Body, choice: Body, request: GenRequest, name: str, ids: list[int], logprobs: list[object], shape: LogprobsShape
) -> Answer:
    asked, request_id = name or request.request_id, top.get("request_id", top.get("id"))
    if not isinstance(request_id, str) or request_id not in (GENERATE_PREFIX + asked, COMPLETIONS_PREFIX + asked):
        raise InvalidResponse("request_id", f"asked as {asked!r}, answered as {request_id!r}")
    spans = choice.get("weight_versions")
    return Answer(
        output_ids=ids,
        logprobs=validate.check_logprobs(logprobs, len(ids)),
        finish=validate.check_finish(choice.get("finish_reason"), len(ids), request.max_tokens),
        stop_reason=validate.check_stop_reason(choice.get("stop_reason"), ids, request.stop),
        spans=None if spans is None else validate.check_spans(spans, len(ids)),
        cached_tokens=_cached_tokens(top.get("usage")),
        request_id=request_id,
        shape=shape,
    )


def _single_choice(payload: object) -> tuple[Body, Body]:
    if not isinstance(payload, dict):
        raise InvalidResponse("json", f"expected an object, got {type(payload).__name__}")
    match payload.get("choices"):
        case [{"finish_reason": "error"}]:
            raise EngineFailed("the engine ended the call with an error")
        case [dict(choice)]:
            return payload, choice
        case other:
            raise InvalidResponse("choices", f"expected one choice, got {other!r:.80}")


def _id_in_text(name: object) -> int | None:
    if isinstance(name, str) and name.startswith(TOKEN_TEXT_PREFIX) and name[len(TOKEN_TEXT_PREFIX) :].isdecimal():
        return int(name[len(TOKEN_TEXT_PREFIX) :])
    return None


def _cached_tokens(usage: object) -> int | None:
    match usage:
        case {"prompt_tokens_details": {"cached_tokens": int(cached)}} if cached >= 0:
            return cached
        case _:
            return None
