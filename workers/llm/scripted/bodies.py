"""Request bodies read and answers written, in the forms vLLM has them.

Like vLLM, unknown fields are ignored and wrong values get a 400; which of an answer's fields exist depends on the wire version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.messages import Sampling
from workers.llm.scripted.engine import Call, Output
from workers.llm.scripted.options import ServerOptions, WireVersion
from workers.llm.tokenizer import Tokenizer
from workers.llm.vllm_wire import GENERATE_PREFIX, TOKEN_TEXT_PREFIX

Body = dict[str, Any]
"""A JSON object; Any because it is a tree of plain values read or written at once."""
DEFAULT_MAX_TOKENS = 16
"""vLLM's, when a request names none."""


class BadRequestError(Exception):
    """A 400, or the status given."""

    def __init__(self, message: str, *, param: str = "", status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.kind = message, param, status, kind


def error_body(message: str, kind: str, status: int, param: str = "") -> Body:
    """An error as vLLM words it: an object under `error`."""
    return {"error": {"message": message, "type": kind, "param": param or None, "code": status}}


def read_generate(body: Body, request_id: str, options: ServerOptions, tokenizer: Tokenizer) -> Call:
    """The call in a body of `/inference/v1/generate`."""
    sampling = body.get("sampling_params", {})
    if not isinstance(sampling, dict):
        raise BadRequestError("sampling_params must be an object", param="sampling_params")
    return _call(body, body.get("token_ids"), sampling, sampling.get("extra_args"), GENERATE_PREFIX + request_id, options, tokenizer)


def read_completions(body: Body, request_id: str, options: ServerOptions, tokenizer: Tokenizer) -> Call:
    """The call in a body of `/v1/completions`."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        prompt = tokenizer.encode_template(prompt)
    if body.get("n", 1) != 1:
        raise BadRequestError("only n=1 is served", param="n")
    return _call(body, prompt, body, body.get("vllm_xargs"), f"cmpl-{request_id}-0", options, tokenizer)


def _call(body: Body, prompt: object, raw: Body, extra: object, request_id: str, options: ServerOptions, tokenizer: Tokenizer) -> Call:
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
    if salt is not None and not (isinstance(salt, str) and 1 <= len(salt) <= 1024):
        raise BadRequestError("cache_salt must be a text of 1 to 1024 characters", param="cache_salt")
    stop = raw.get("stop") or []
    extra_args = extra if isinstance(extra, dict) else {}
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
        stop=(stop,) if isinstance(stop, str) else tuple(text for text in stop if isinstance(text, str) and text),
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


def write_generate(body: Body, call: Call, output: Output, wire: WireVersion) -> Body:
    """The answer of `/inference/v1/generate`."""
    sampling = body.get("sampling_params", {})
    choice: Body = {"index": 0, "finish_reason": output.finish, "token_ids": output.token_ids, "logprobs": None}
    if sampling.get("logprobs") is not None:
        entry = _entry_by_text if wire == "0.31" else _entry_by_id
        most = max(1, sampling["logprobs"])
        choice["logprobs"] = {"content": [entry(id_, lp, top, most) for id_, lp, top in _places(output)]}
    answer: Body = {"request_id": call.request_id, "usage": _usage(call, output), "choices": [choice]}
    answer["prompt_logprobs"] = _prompt_logprobs(call, output)
    if body.get("return_token_ids"):
        answer["prompt_token_ids"] = list(call.prompt_ids)
    if wire != "0.31":
        answer["output_mode"] = "tokens"
        choice["stop_reason"] = output.stop_reason
        choice["weight_versions"] = _spans(output)
    return answer


def write_completions(body: Body, call: Call, output: Output, wire: WireVersion, tokenizer: Tokenizer, model: str) -> Body:
    """The answer of `/v1/completions`."""
    text = tokenizer.decode([id_ for id_ in output.token_ids if id_ not in tokenizer.special_ids])
    if isinstance(output.stop_reason, str):
        text = text[: text.find(output.stop_reason)]
    choice: Body = {
        "index": 0,
        "text": text,
        "finish_reason": output.finish,
        "stop_reason": output.stop_reason,
        "logprobs": None,
    }
    if body.get("logprobs") is not None:
        by_id = body.get("return_tokens_as_token_ids")
        names = [_name(id_, tokenizer, by_id) for id_ in output.token_ids]
        choice["logprobs"] = {
            "tokens": names,
            "token_logprobs": output.logprobs,
            "top_logprobs": [{_name(i, tokenizer, by_id): lp for i, lp in top.items()} for _, _, top in _places(output)],
            "text_offset": _offsets(output.token_ids, tokenizer),
        }
    if body.get("return_token_ids"):
        choice["token_ids"], choice["prompt_token_ids"] = output.token_ids, list(call.prompt_ids)
    if wire == "0.33" and body.get("return_weight_versions"):
        choice["weight_versions"] = _spans(output)
    choice["prompt_logprobs"] = _prompt_logprobs(call, output)
    name = call.request_id.removesuffix("-0")
    return {"id": name, "object": "text_completion", "model": model, "choices": [choice], "usage": _usage(call, output)}


def _places(output: Output) -> list[tuple[int, float, dict[int, float]]]:
    """Each token, its logprob, and the logprobs of it and of the tokens asked for, the sampled one first."""
    scored = output.scored or [{}] * len(output.token_ids)
    return [(i, lp, {i: lp} | more) for i, lp, more in zip(output.token_ids, output.logprobs, scored, strict=True)]


def _entry_by_id(id_: int, logprob: float, top: dict[int, float], most: int) -> Body:
    listed = [{"token_id": i, "logprob": lp, "rank": 1} for i, lp in [*top.items()][:most]]
    return {"token_id": id_, "logprob": logprob, "rank": 1, "top_logprobs": listed}


def _entry_by_text(id_: int, logprob: float, top: dict[int, float], most: int) -> Body:
    listed = [{"token": f"{TOKEN_TEXT_PREFIX}{i}", "logprob": lp, "bytes": None} for i, lp in [*top.items()][:most]]
    return {"token": f"{TOKEN_TEXT_PREFIX}{id_}", "logprob": logprob, "bytes": None, "top_logprobs": listed}


def _name(id_: int, tokenizer: Tokenizer, by_id: object) -> str:
    return f"{TOKEN_TEXT_PREFIX}{id_}" if by_id else tokenizer.decode([id_])


def _prompt_logprobs(call: Call, output: Output) -> list[Body | None] | None:
    """One entry a token of the prompt; the first has none."""
    if output.prompt_logprobs is None:
        return None
    pairs = zip(call.prompt_ids[1:], output.prompt_logprobs, strict=True)
    return [None, *({str(id_): {"logprob": lp, "rank": 1, "decoded_token": None}} for id_, lp in pairs)]


def _spans(output: Output) -> list[Body]:
    return [{"version": version, "start": start, "end": end} for version, start, end in output.spans]


def _usage(call: Call, output: Output) -> Body:
    prompt, completion = len(call.prompt_ids), len(output.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": output.cached_tokens},
    }


def _offsets(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    stream, offsets, length = tokenizer.stream(), [], 0
    for id_ in ids:
        offsets.append(length)
        length += len(stream.push(id_))
    return offsets
