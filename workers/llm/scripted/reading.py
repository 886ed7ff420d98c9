"""Requests read and checked, whatever their wire: wrong values get a 400, unknown fields are ignored."""

from __future__ import annotations

from pipeline.messages import Sampling
from workers.llm.scripted.call import Call
from workers.llm.scripted.http import BadRequestError, Body
from workers.llm.scripted.options import ServerOptions
from workers.llm.tokenizer import Tokenizer
from workers.llm.vllm_wire import MAX_SALT, NOT_IN_SALT

DEFAULT_MAX_TOKENS = 16
"""vLLM's, when a request names none."""


def read_call(body: Body, prompt: object, raw: Body, extra: object, request_id: str, options: ServerOptions, tokenizer: Tokenizer) -> Call:
    """The call that a request asks for.

    Args:
        body: what is said beside the sampling: `model`, `cache_salt`, `stream`.
        prompt: its ids.
        raw: the sampling.
        extra: arguments of ours: a `script` to say and the `delay_ms` of its tokens.
    """
    if extra is not None and not isinstance(extra, dict):
        raise BadRequestError("Input should be a valid dictionary", param="body")
    if body.get("stream"):
        raise BadRequestError("streaming is not served here", param="stream")
    model = body.get("model")
    if model is not None and model != options.model:
        raise BadRequestError(f"The model `{model}` does not exist.", param="model", status=404, kind="NotFoundError")
    ids = _ids(prompt, "prompt", tokenizer.vocab_size)
    if not ids:
        raise BadRequestError("the prompt must hold at least one token", param="prompt")
    room = options.max_model_len - len(ids)
    if room < 1:
        raise BadRequestError(f"The prompt has {len(ids)} tokens; the context of this model is {options.max_model_len} tokens.")
    salt = body.get("cache_salt")
    if salt is not None and not (isinstance(salt, str) and (options.wire.startswith("sglang") or _is_salt(salt))):
        raise BadRequestError("cache_salt must be at most 128 characters without '@', '/', '\\\\' or NUL", param="cache_salt")
    stop = raw.get("stop") or []
    if "" in stop:  # also as one empty text
        raise BadRequestError("stop cannot contain an empty string.")
    if raw.get("allowed_token_ids") == []:
        raise BadRequestError("allowed_token_ids is not None and empty!", param="allowed_token_ids")
    extra_args = extra or {}
    script = extra_args.get("script")
    delay_ms = extra_args.get("delay_ms")
    if delay_ms is not None and not (isinstance(delay_ms, int | float) and 0 <= delay_ms <= 60_000):
        raise BadRequestError("delay_ms must be a number from 0 to 60000", param="delay_ms")
    return Call(
        request_id=request_id,
        prompt_ids=ids,
        sampling=Sampling(
            temperature=_number(raw, "temperature", 1.0, 0.0, 100.0),
            top_p=_number(raw, "top_p", 1.0, 1e-9, 1.0),
            top_k=max(0, _whole(raw, "top_k", 0, -1)),
            min_p=_number(raw, "min_p", 0.0, 0.0, 1.0),
            presence_penalty=_number(raw, "presence_penalty", 0.0, -2.0, 2.0),
            frequency_penalty=_number(raw, "frequency_penalty", 0.0, -2.0, 2.0),
            repetition_penalty=_number(raw, "repetition_penalty", 1.0, 1e-9, 100.0),
            max_tokens=min(_whole(raw, "max_tokens", DEFAULT_MAX_TOKENS, 1), room),
        ),
        seed=_whole(raw, "seed", 0, -(2**63)),
        stop_token_ids=frozenset(_ids(raw.get("stop_token_ids") or [], "stop_token_ids", tokenizer.vocab_size)),
        stop=(stop,) if isinstance(stop, str) else tuple(text for text in stop if isinstance(text, str)),
        ignore_eos=raw.get("ignore_eos") is True,
        cache_salt=salt,
        allowed_token_ids=tuple(_ids(raw.get("allowed_token_ids") or [], "allowed_token_ids", tokenizer.vocab_size)),
        script=None if script is None else tuple(_ids(script, "script", tokenizer.vocab_size)),
        delay_s=None if delay_ms is None else delay_ms / 1000,
        scores_prompt=_scores_prompt(raw),
        scored_ids=_scored_ids(raw, tokenizer.vocab_size),
    )


def _scores_prompt(raw: Body) -> bool:
    """`prompt_logprobs`; this server knows the probability of the token that stands there, and of no other."""
    asked = raw.get("prompt_logprobs")
    if asked is not None and (type(asked) is not int or asked != 0):
        raise BadRequestError(f"Requested prompt logprobs of {asked}, which is greater than max allowed: 0", param="prompt_logprobs")
    return asked is not None


def _scored_ids(raw: Body, vocab_size: int) -> tuple[int, ...]:
    ids = tuple(_ids(raw.get("logprob_token_ids") or [], "logprob_token_ids", vocab_size))
    if ids and raw.get("logprobs") != len(ids):
        raise BadRequestError("logprobs must equal len(logprob_token_ids) when both are set", param="logprob_token_ids")
    return ids


def _ids(value: object, param: str, vocab_size: int) -> list[int]:
    if not isinstance(value, list):
        raise BadRequestError(f"{param} must be a list of token ids", param=param)
    for id_ in value:
        if type(id_) is not int or id_ < 0:
            raise BadRequestError(f"{param} must be a list of token ids", param=param)
        if id_ >= vocab_size:
            raise BadRequestError(f"Token id {id_} is out of vocabulary", param=param)
    return value


def _number(raw: Body, name: str, default: float, low: float, high: float) -> float:
    value = raw.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not low <= value <= high:
        raise BadRequestError(f"{name} must be in [{low:g}, {high:g}], got {value!r}", param=name)
    return float(value)


def _whole(raw: Body, name: str, default: int, low: int) -> int:
    value = raw.get(name)
    if value is None:
        return default
    if type(value) is not int or value < low:
        raise BadRequestError(f"{name} must be a whole number of at least {low}, got {value!r}", param=name)
    return value


def _is_salt(text: str) -> bool:
    """Whether vLLM takes it; SGLang takes any."""
    return 1 <= len(text) <= MAX_SALT and NOT_IN_SALT.isdisjoint(text)
