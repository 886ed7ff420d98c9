"""The probabilities of the scripted policy.

At each place the policy's next token has probability q and the other V - 1 tokens share the rest evenly. q is a function of the ids
before it, the token and the weights (their label), so the same history gives the same logprob whoever asks, in whatever number of
calls, and other weights give another one. From that, all kinds of logprob follow exactly:

    raw        ln q
    scaled     of q after temperature, over the whole vocabulary
    processed  of q after temperature, top-k, top-p and min-p, renormalised: the distribution a token is sampled from
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipeline.messages import Sampling
from workers.llm.backend import LogprobsMode

LOWEST_Q = 0.02


def token_logprobs(
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    weights: Sequence[str],
    sampling: Sampling,
    *,
    mode: LogprobsMode,
    vocab_size: int,
) -> list[float]:
    """Logprob of each output token, rounded to float32 as an engine's are.

    Args:
        weights: label of the weights that sampled each output token.
    """
    context = zlib.crc32(np.asarray(prompt_ids, dtype="<u4").tobytes())
    draws = np.empty(len(output_ids))
    label_of = {label: zlib.crc32(label.encode("utf-8", "replace")) for label in set(weights)}
    for place, (id_, label) in enumerate(zip(output_ids, weights, strict=True)):
        context = zlib.crc32(id_.to_bytes(4, "little"), context)
        # Multiplying by an odd constant spreads the few bits in which two contexts differ over the word.
        draws[place] = ((context ^ label_of[label]) * 0x9E3779B1 & 0xFFFFFFFF) / 2**32
    q = 1.0 - (1.0 - LOWEST_Q) * draws**4  # most tokens are nearly certain, some are open: entropy as of a trained model
    if mode == "scaled":
        sampling = replace(sampling, top_p=1.0, top_k=0, min_p=0.0)
    if mode != "raw":
        q = _processed(q, sampling, vocab_size)
    return [float(value) for value in np.log(q).astype(np.float32)]


def forced_logprob(mode: LogprobsMode, vocab_size: int) -> float:
    """Logprob of a token that the request alone allowed: certain once processed, an unlikely one before."""
    return 0.0 if mode == "processed" else float(np.float32(-np.log(vocab_size)))


def _processed(q: np.ndarray, sampling: Sampling, vocab_size: int) -> np.ndarray:
    other = (1.0 - q) / (vocab_size - 1)
    if sampling.temperature > 0:  # greedy sampling leaves the distribution as it is
        q, other = q ** (1 / sampling.temperature), other ** (1 / sampling.temperature)
    others = np.full_like(q, min(vocab_size, sampling.top_k or vocab_size) - 1)
    whole = q + (vocab_size - 1) * other
    others[(q / whole >= sampling.top_p) | (other < sampling.min_p * q)] = 0
    probability: np.ndarray = q / (q + others * other)
    return probability
