"""Whether recorded logprobs are those of the distribution that was sampled from.

The trainer divides its own probability of a token by the recorded one. That ratio is right only when both are of one distribution: a
server in `raw` mode reports the model's before temperature and penalties, and truncated sampling (top-p, top-k, min-p) renormalises
over a set of tokens the trainer does not know.
"""

from __future__ import annotations

from typing import Literal

from pipeline.exact_sampling import inexact_sampling
from pipeline.messages import Sampling


def ratio_bias(logprobs_mode: Literal["raw", "processed"], sampling: Sampling) -> str:
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
            return f"the server reports raw logprobs, from before {', '.join(changed)}; start it with --logprobs-mode processed_logprobs"
    return ""
