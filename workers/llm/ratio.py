"""Whether recorded logprobs are those of the distribution that was sampled from.

The trainer divides its own probability of a token by the recorded one. That ratio is right only when both are of one distribution: a
server in `raw` mode reports the model's before temperature and penalties, and truncated sampling (top-p, top-k, min-p) renormalises
over a set of tokens the trainer does not know. `scaled` and `processed` differ for truncated sampling only.
"""

from __future__ import annotations

from pipeline.exact_sampling import inexact_sampling
from pipeline.messages import Sampling
from workers.llm.backend import LogprobsMode

REMEDY = "start vLLM with --logprobs-mode processed_logprobs, SGLang without SGLANG_RETURN_ORIGINAL_LOGPROB"


def ratio_bias(logprobs_mode: LogprobsMode, sampling: Sampling) -> str:
    """Why the ratio would be biased, for people; empty when it is not."""
    if why := inexact_sampling(sampling):
        return why
    if logprobs_mode == "raw":
        changed = [
            name
            for name, off in (("temperature", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0), ("repetition_penalty", 1.0))
            if getattr(sampling, name) != off
        ]
        if changed:
            return f"the server reports raw logprobs, from before {', '.join(changed)}; {REMEDY}"
    return ""
