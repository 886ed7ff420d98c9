"""Which sampling leaves no probabilities that a trainer could divide by, whatever the server reports."""

from __future__ import annotations

from pipeline.messages import Sampling


def inexact_sampling(sampling: Sampling) -> str:
    """Why no recorded logprob can be that of the distribution sampled from, for people; empty when it can."""
    if sampling.temperature == 0:
        return "greedy sampling has no probabilities to take a ratio of"
    truncated = [name for name, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)) if getattr(sampling, name) != off]
    if truncated:
        return f"{', '.join(truncated)} cut the distribution, and the set of tokens that was left is not recorded"
    return ""


__all__ = ["inexact_sampling"]
