"""Request bodies read and answers written in SGLang's form (0.5), of the newest version and of one that shows less.

Like SGLang, unknown fields are ignored; a budget beyond the context is refused.
"""

from __future__ import annotations

from pipeline.messages import RoutedExperts
from workers.llm.scripted.call import Call, Output
from workers.llm.scripted.experts import as_int32
from workers.llm.scripted.http import BadRequestError, Body
from workers.llm.scripted.options import ServerOptions
from workers.llm.scripted.reading import read_call
from workers.llm.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 128
"""SGLang's, when a request names none."""
RESERVED = 6
"""Tokens of the context that no prompt may take."""


def longest_prompt(options: ServerOptions) -> int:
    """`max_req_input_len`: a prompt must be shorter."""
    return options.max_model_len - RESERVED


def read_generate(body: Body, rid: str, options: ServerOptions, tokenizer: Tokenizer) -> Call:
    """The call in a body of `/generate`."""
    params = body.get("sampling_params") or {}
    if not isinstance(params, dict):
        raise BadRequestError("sampling_params must be an object", param="sampling_params")
    if (params.get("n") or 1) != 1:
        raise BadRequestError("only n=1 is served", param="n")
    if params.get("top_k") == 0:
        raise BadRequestError("top_k must be -1 (disable) or at least 1, got 0.")
    if (params.get("repetition_penalty") or 1.0) > 2.0:
        raise BadRequestError(f"repetition_penalty must be in (0, 2] (1.0 = no penalty), got {params['repetition_penalty']}.")
    prompt = body.get("input_ids")
    if prompt is None and isinstance(body.get("text"), str):
        prompt = tokenizer.encode_template(body["text"])
    budget = params.get("max_new_tokens", DEFAULT_MAX_TOKENS)
    if isinstance(prompt, list) and len(prompt) >= longest_prompt(options):
        raise BadRequestError(f"The input ({len(prompt)} tokens) is longer than the model's context length.")
    if isinstance(prompt, list) and type(budget) is int and len(prompt) + budget > options.max_model_len:
        raise BadRequestError(
            f"Requested token count exceeds the model's maximum context length of {options.max_model_len} tokens. "
            f"You requested a total of {len(prompt) + budget} tokens"
        )
    scored = body.get("token_ids_logprob") or []
    raw = {**params, "max_tokens": budget, "seed": params.get("sampling_seed"), "logprob_token_ids": scored, "logprobs": len(scored)}
    common = {"cache_salt": body.get("extra_key") or None, "stream": body.get("stream")}
    return read_call(common, prompt, raw, params.get("custom_params"), rid, options, tokenizer)


def write_generate(
    body: Body,
    call: Call,
    output: Output,
    label: str,
    tokenizer: Tokenizer,
    *,
    shows_all: bool,
    experts: RoutedExperts | None = None,
) -> Body:
    """The answer of `/generate`.

    Args:
        label: of the weights that are loaded now.
        shows_all: the prompt's ids on demand, version spans, and of experts no more than is wanted.
        experts: what it makes up of them on demand.
    """
    in_line = output.finish == "abort" and not output.token_ids
    meta: Body = {
        "id": call.request_id,
        "finish_reason": _finish_reason(output, in_line=in_line),
        "weight_version": label,
        "completion_tokens": len(output.token_ids),
    }
    if not in_line:  # such an answer is made by another part of the server, which knows less
        meta |= {"prompt_tokens": len(call.prompt_ids), "cached_tokens": output.cached_tokens, "num_retractions": 0}
    if shows_all and output.spans:
        meta["weight_versions"] = [{"version": version, "start": start, "end": end} for version, start, end in output.spans]
    if body.get("return_logprob"):
        pairs = zip(output.logprobs, output.token_ids, strict=True)
        meta["input_token_logprobs"] = []
        meta["output_token_logprobs"] = [[logprob, id_, None] for logprob, id_ in pairs]
        if output.scored is not None:
            meta["output_token_ids_logprobs"] = [[[logprob, id_, None] for id_, logprob in top.items()] for top in output.scored]
    if experts is not None and body.get("return_routed_experts") and output.token_ids:
        meta["routed_experts"] = as_int32(call, output, experts, body.get("routed_experts_start_len") if shows_all else 0)
    answer: Body = {"text": tokenizer.decode(output.token_ids), "output_ids": output.token_ids, "meta_info": meta}
    if shows_all and body.get("return_prompt_token_ids"):
        answer["prompt_token_ids"] = list(call.prompt_ids)
    return answer


def _finish_reason(output: Output, *, in_line: bool) -> Body:
    match output.finish:
        case "stop":
            return {"type": "stop", "matched": output.token_ids[-1] if output.stop_reason is None else output.stop_reason}
        case "length":
            return {"type": "length", "length": len(output.token_ids)}
        case _ if in_line:
            return {"type": "abort", "message": "Abort in waiting queue"}
        case _:
            return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
