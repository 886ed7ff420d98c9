"""The bodies that SGLang's `/generate` takes and gives, as pure functions (0.5).

Fields that it does not know it ignores, so bodies are built here, from typed records, and nowhere else. What differs from vLLM:

  * It refuses a budget beyond the context instead of clipping it; a prompt it clips without a word where `--allow-auto-truncate` is on.
  * 0 is no `top_k`; a `repetition_penalty` above 2 is refused.
  * An answer stands in `output_ids` and `meta_info`; a logprob is `[logprob, id, text or null]`; the finish is an object. A stop names
    what matched, the model's own end token too, which is none of the request's stops and so no reason of ours.
  * Where sampling gave no number it writes an end token and says that the text `NaN happened` matched: nothing of that is believed.
  * A call aborted in line has neither prompt nor tokens to show.
  * The prompt's ids come back since 0.5.15; before that only their number.

Logprobs are of the whole vocabulary after temperature and penalties and before truncation: `scaled`.
"""

from __future__ import annotations

from pipeline.engines.errors import InvalidResponse
from pipeline.engines.sglang import wire_id
from workers.llm import validate
from workers.llm.backend import Echo, GenRequest
from workers.llm.wire import Answer, Body, EngineFailed

GENERATE = "/generate"


def generate_body(request: GenRequest, name: str, max_model_len: int) -> Body:
    """Body of `POST /generate`."""
    sampling = request.sampling
    params: Body = {
        "max_new_tokens": min(request.max_tokens, max_model_len - len(request.prompt_ids)),
        "sampling_seed": request.seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "min_new_tokens": 0,
        "n": 1,
        "ignore_eos": False,
        "stop_token_ids": list(request.stop_token_ids),
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
    if request.stop:
        params["stop"] = list(request.stop)
    if request.extra_args:
        params["custom_params"] = dict(request.extra_args)
    body: Body = {
        "rid": wire_id(name),
        "input_ids": list(request.prompt_ids),
        "sampling_params": params,
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "return_text_in_logprobs": False,
        "return_prompt_token_ids": True,
        "stream": False,
    }
    if request.cache_salt is not None:
        body["extra_key"] = request.cache_salt
    if request.priority:
        body["priority"] = request.priority
    if request.session_id:
        body["session_id"] = request.session_id
    if request.experts is not None:
        body["return_routed_experts"] = True
        body["routed_experts_start_len"] = request.experts_from
    return body


def parse_generate(payload: object, request: GenRequest, name: str, echo: Echo) -> Answer:
    """The checked answer.

    Args:
        echo: what the server shows of the prompt; one that shows ids shows them always.

    Raises:
        InvalidResponse: any check failed.
        EngineFailed: the engine made no number.
    """
    top, meta = _single_answer(payload)
    if meta.get("id") != wire_id(name):
        raise InvalidResponse("request_id", f"asked as {wire_id(name)!r}, answered as {meta.get('id')!r}")
    finish, matched = _finish_of(meta.get("finish_reason"))
    if isinstance(matched, str) and matched not in request.stop:
        raise EngineFailed(f"the engine stopped by itself: {matched!r:.80}")
    ids = validate.check_ids(top.get("output_ids"), "output ids")
    if finish != "abort" or ids or "prompt_token_ids" in top:
        _check_prompt(request, top, meta, echo)
    return Answer(
        output_ids=ids,
        logprobs=logprobs_of(meta.get("output_token_logprobs"), ids),
        finish=validate.check_finish(finish, len(ids), request.max_tokens),
        stop_reason=_stop_reason(validate.check_stop_reason(matched, ids, request.stop), request),
        spans=None if meta.get("weight_versions") is None else validate.check_spans(meta["weight_versions"], len(ids)),
        cached_tokens=_count(meta.get("cached_tokens")),
        request_id=wire_id(name),
        shape="triples",
    )


def experts_in(payload: object) -> object:
    """What stands for experts in an answer that was parsed; None = nothing."""
    return _single_answer(payload)[1].get("routed_experts")


def _stop_reason(matched: int | str | None, request: GenRequest) -> int | str | None:
    """What ended the answer, unless that is the model's own end token."""
    return matched if isinstance(matched, str) or matched in request.stop_token_ids else None


def _single_answer(payload: object) -> tuple[Body, Body]:
    if isinstance(payload, list):
        raise InvalidResponse("choices", f"expected one answer, got {len(payload)}")
    meta = payload.get("meta_info") if isinstance(payload, dict) else None
    if not isinstance(payload, dict) or not isinstance(meta, dict):
        raise InvalidResponse("json", f"expected output_ids and meta_info, got {payload!r:.80}")
    return payload, meta


def _finish_of(reason: object) -> tuple[str, int | str | None]:
    """Type of the finish, and what matched, if something did."""
    match reason:
        case {"type": str(kind), "matched": int() | str() as matched}:
            return kind, matched
        case {"type": str(kind)}:
            return kind, None
        case other:
            raise InvalidResponse("finish", f"expected an object with a type, got {other!r:.80}")


def _check_prompt(request: GenRequest, top: Body, meta: Body, echo: Echo) -> None:
    """The server must have read the prompt that we sent: all of it, at least."""
    if echo == "ids":
        validate.check_echo(request.prompt_ids, top.get("prompt_token_ids"))
    elif meta.get("prompt_tokens") != len(request.prompt_ids):
        raise InvalidResponse("echo", f"sent {len(request.prompt_ids)} prompt ids, the server says it read {meta.get('prompt_tokens')!r}")


def logprobs_of(triples: object, ids: list[int]) -> list[float]:
    """The logprobs of `ids` in `[logprob, id, text]`, one for one."""
    if triples is None and not ids:
        return []
    if not isinstance(triples, list):
        raise InvalidResponse("logprobs_length", f"{len(ids)} tokens but no logprobs at all")
    if len(triples) != len(ids):
        raise InvalidResponse("logprobs_length", f"{len(ids)} tokens but {len(triples)} logprobs")
    values: list[object] = []
    for position, (id_, triple) in enumerate(zip(ids, triples, strict=True)):
        match triple:
            case [value, int(named), _] if named == id_:
                values.append(value)
            case other:
                raise InvalidResponse("logprobs_ids", f"logprob at {position} is {other!r:.80}, the output has token {id_}")
    return validate.check_logprobs(values, len(ids))


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
