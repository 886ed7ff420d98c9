"""Request bodies read and answers written, in the forms vLLM has them.

Like vLLM, unknown fields are ignored and wrong values get a 400; which of an answer's fields exist depends on the wire version.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.engines.vllm import COMPLETIONS_PREFIX, GENERATE_PREFIX
from workers.llm.scripted.call import Call, Output
from workers.llm.scripted.experts import as_npy
from workers.llm.scripted.http import BadRequestError, Body
from workers.llm.scripted.images import check_features
from workers.llm.scripted.options import ServerOptions
from workers.llm.scripted.reading import read_call
from workers.llm.tokenizer import Tokenizer
from workers.llm.vllm_wire import TOKEN_TEXT_PREFIX

MOST_LOGPROBS = 20
"""vLLM's default bound of candidates a token."""


def error_body(message: str, kind: str, status: int, param: str = "") -> Body:
    """An error as vLLM words it: an object under `error`."""
    return {"error": {"message": message, "type": kind, "param": param or None, "code": status}}


def read_generate(body: Body, request_id: str, options: ServerOptions, tokenizer: Tokenizer) -> Call:
    """The call in a body of `/inference/v1/generate`."""
    sampling = body.get("sampling_params")
    if not isinstance(sampling, dict):
        raise BadRequestError("sampling_params must be an object", param="body.sampling_params")
    _check(body, sampling)
    check_features(body, options, tokenizer)
    return read_call(body, body.get("token_ids"), sampling, sampling.get("extra_args"), GENERATE_PREFIX + request_id, options, tokenizer)


def read_completions(body: Body, request_id: str, options: ServerOptions, tokenizer: Tokenizer) -> Call:
    """The call in a body of `/v1/completions`."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        prompt = tokenizer.encode_template(prompt)
    if body.get("n", 1) != 1:
        raise BadRequestError("only n=1 is served", param="n")
    _check(body, body)
    return read_call(body, prompt, body, body.get("vllm_xargs"), f"{COMPLETIONS_PREFIX}{request_id}-0", options, tokenizer)


def _check(body: Body, sampling: Body) -> None:
    """What vLLM refuses and other wires do not have."""
    if not isinstance(body.get("request_id", ""), str | None):
        raise BadRequestError("Input should be a valid string", param="body.request_id")
    if type(body.get("priority", 0)) is not int:
        raise BadRequestError("Input should be a valid integer", param="body.priority")
    asked = sampling.get("logprobs")
    if asked is not None and (type(asked) is not int or not 0 <= asked <= MOST_LOGPROBS):
        raise BadRequestError(f"Requested sample logprobs of {asked}, which is greater than max allowed: {MOST_LOGPROBS}", param="logprobs")


def write_generate(body: Body, call: Call, output: Output, options: ServerOptions) -> Body:
    """The answer of `/inference/v1/generate`."""
    wire, sampling = options.wire, body["sampling_params"]
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
    choice |= _experts(sampling, call, output, options)
    return answer


def write_completions(body: Body, call: Call, output: Output, options: ServerOptions, tokenizer: Tokenizer) -> Body:
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
    if options.wire == "0.33" and body.get("return_weight_versions"):
        choice["weight_versions"] = _spans(output)
    choice["prompt_logprobs"] = _prompt_logprobs(call, output)
    choice |= _experts(body, call, output, options)
    name = call.request_id.removesuffix("-0")
    return {"id": name, "object": "text_completion", "model": options.model, "choices": [choice], "usage": _usage(call, output)}


def _experts(sampling: Body, call: Call, output: Output, options: ServerOptions) -> Body:
    """In every answer of a server that has them, asked or not; only newer ones leave out what is not wanted."""
    if options.routed_experts is None or not output.token_ids:
        return {}
    start = sampling.get("routed_experts_prompt_start") if options.wire == "0.33" else 0
    return {"routed_experts": as_npy(call, output, options.routed_experts, start)}


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
