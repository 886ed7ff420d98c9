"""From logits to a token and its logprob: the distribution that a request asks for, and a draw from it.

    raw        log-softmax of the logits
    scaled     after penalties and temperature, over the whole vocabulary
    processed  after top-k, top-p and min-p too: the very distribution that the token is drawn from

At temperature 0 the most likely token is taken, and the distribution is that of temperature 1, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipeline.messages import Sampling
from workers.llm.backend import LogprobsMode

Floats = npt.NDArray[np.float64]


def log_softmax(logits: Floats) -> Floats:
    """Along the last axis."""
    shifted = logits - logits.max(-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def is_plain(sampling: Sampling, allowed: Sequence[int]) -> bool:
    """Whether temperature alone shapes the distribution: then many rows are done at once."""
    return not allowed and sampling.top_k == 0 and sampling.top_p >= 1 and sampling.min_p <= 0 and not _penalises(sampling)


def distributions(
    logits_V: Floats, sampling: Sampling, prompt_ids: Sequence[int], output_ids: Sequence[int], allowed: Sequence[int]
) -> tuple[Floats, Floats]:
    """Log probabilities `scaled` and `processed`, each of shape [V]."""
    logits = _penalised(logits_V, sampling, prompt_ids, output_ids) / (sampling.temperature or 1.0)
    scaled = log_softmax(logits)
    keeps = np.ones(len(logits), dtype=bool)
    if allowed:
        keeps[:] = False
        keeps[list(allowed)] = True
    if sampling.temperature > 0:
        keeps &= _within(np.where(keeps, scaled, -np.inf), sampling)
    return scaled, log_softmax(np.where(keeps, logits, -np.inf))


def draw(log_probabilities_N_V: Floats, uniform_N: Floats) -> npt.NDArray[np.int64]:
    """A token a row, by where a number from [0, 1) falls among the cumulated probabilities."""
    sums = np.exp(log_probabilities_N_V).cumsum(-1)
    places: npt.NDArray[np.int64] = (sums <= uniform_N[:, None] * sums[:, -1:]).sum(-1)
    return places


def chosen(mode: LogprobsMode, logits_V: Floats, scaled_V: Floats, processed_V: Floats) -> Floats:
    """The log probabilities that are told."""
    match mode:
        case "raw":
            return log_softmax(logits_V)
        case "scaled":
            return scaled_V
        case _:
            return processed_V


def _penalises(sampling: Sampling) -> bool:
    return bool(sampling.presence_penalty or sampling.frequency_penalty) or sampling.repetition_penalty != 1.0


def _penalised(logits_V: Floats, sampling: Sampling, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Floats:
    if not _penalises(sampling):
        return logits_V
    logits = logits_V.copy()
    seen = np.unique([*prompt_ids, *output_ids])
    factor = sampling.repetition_penalty
    logits[seen] = np.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
    said, times = np.unique(np.asarray(output_ids, dtype=np.int64), return_counts=True)
    logits[said] -= sampling.presence_penalty + sampling.frequency_penalty * times
    return logits


def _within(log_probabilities_V: Floats, sampling: Sampling) -> npt.NDArray[np.bool_]:
    """Which tokens top-k, top-p and min-p leave; always the most likely one."""
    order = np.argsort(-log_probabilities_V, kind="stable")
    ranked = np.exp(log_probabilities_V[order])
    ranked /= ranked.sum()
    keeps_ranked = np.ones(len(order), dtype=bool)
    if sampling.top_k:
        keeps_ranked[sampling.top_k :] = False
    if sampling.min_p > 0:
        keeps_ranked &= ranked >= sampling.min_p * ranked[0]
    if sampling.top_p < 1:
        kept = np.where(keeps_ranked, ranked, 0.0)
        before = np.concatenate(([0.0], (kept / kept.sum()).cumsum()[:-1]))
        keeps_ranked &= before < sampling.top_p
    keeps_ranked[0] = True
    keeps = np.zeros(len(order), dtype=bool)
    keeps[order[keeps_ranked]] = True
    return keeps
