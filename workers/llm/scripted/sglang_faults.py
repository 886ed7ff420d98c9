"""Answers of SGLang bent on purpose, each in one way."""

from __future__ import annotations

from workers.llm.scripted.faults import Corruption
from workers.llm.scripted.http import Body


def dictate_logprobs(answer: Body, request: Body) -> None:
    """Put the logprobs that a request's custom parameters name in place of the engine's, whatever they are; null leaves all of them out."""
    custom = (request.get("sampling_params") or {}).get("custom_params") or {}
    if "logprobs" not in custom:
        return
    values, meta = custom["logprobs"], answer["meta_info"]
    triples = meta["output_token_logprobs"]
    meta["output_token_logprobs"] = (
        None if values is None else [[value, *triples[min(at, len(triples) - 1)][1:]] for at, value in enumerate(values)]
    )


def corrupt(answer: Body, how: Corruption) -> Body | list[Body] | bytes:
    """A good answer, bent in one way; bytes where it is no JSON any more."""
    meta, ids = answer["meta_info"], answer["output_ids"]
    triples = meta["output_token_logprobs"]
    match how:
        case "not_json":
            return b'{"output_ids": [1, 2, '
        case "html":
            return b"<html><body>Welcome</body></html>"
        case "no_echo":
            answer.pop("prompt_token_ids", None)
            del meta["prompt_tokens"]
        case "other_echo" if "prompt_token_ids" in answer:
            answer["prompt_token_ids"] = [*answer["prompt_token_ids"][:-1], answer["prompt_token_ids"][-1] ^ 1]
        case "other_echo":
            meta["prompt_tokens"] += 1
        case "shorter_echo":
            answer |= {"prompt_token_ids": answer["prompt_token_ids"][:-1]} if "prompt_token_ids" in answer else {}
            meta["prompt_tokens"] -= 1
        case "no_logprobs":
            meta["output_token_logprobs"] = None
        case "shorter_logprobs":
            del triples[-1]
        case "swapped_logprobs":
            triples[-1], triples[-2] = triples[-2], triples[-1]
        case "null_logprob":
            triples[-1][0] = None
        case "infinite_logprob":
            triples[-1][0] = "-Infinity"
        case "sentinel_logprob":
            triples[-1][0] = -9999.0
        case "positive_logprob":
            triples[-1][0] = 0.5
        case "other_token_id":
            triples[-1][1] += 1
        case "unknown_finish":
            meta["finish_reason"] = {"type": "banana"}
        case "error_finish":
            meta["finish_reason"] = {"type": "stop", "matched": "NaN happened"}
        case "gap_in_spans":
            n = len(ids)
            meta["weight_versions"] = [{"version": "a", "start": 0, "end": n - 2}, {"version": "b", "start": n - 1, "end": n}]
        case "short_spans":
            meta["weight_versions"] = [{"version": "a", "start": 0, "end": len(ids) - 1}]
        case "two_choices":
            return [answer, answer]
        case "negative_id":
            answer["output_ids"] = [-1, *ids[1:]]
        case "too_many_tokens":
            answer["output_ids"] = ids * 200
            meta |= {"output_token_logprobs": triples * 200, "weight_versions": [{"version": "a", "start": 0, "end": len(ids) * 200}]}
        case "other_request_id":
            meta["id"] = "somebody-else"
    return answer
