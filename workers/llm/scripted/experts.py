"""Experts as the scripted server makes them up: a function of a token and its place, so that whoever has the ids can check each row."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np

from pipeline.blobs import ExpertRows, expert_rows
from pipeline.messages import U32, RoutedExperts
from workers.llm.scripted.call import Call, Output


def made_up_experts(ids: Sequence[int] | U32, model: RoutedExperts, start: int = 0) -> ExpertRows:
    """Rows of all tokens but the last: shape [len(ids) - 1 - start, layers, top_k]."""
    id_N = np.asarray(ids, np.int64)[start:-1]
    place_N = np.arange(start, start + len(id_N), dtype=np.int64)
    layer_L = np.arange(model.layers, dtype=np.int64)
    first_N_L = id_N[:, None] * 31 + place_N[:, None] * 17 + layer_L * 7
    return expert_rows((first_N_L[:, :, None] + np.arange(model.top_k)) % model.experts, model.experts)


def as_npy(call: Call, output: Output, model: RoutedExperts, start: object) -> str:
    """As vLLM sends them."""
    content = io.BytesIO()
    np.save(content, _rows(call, output, model, start), allow_pickle=False)
    return base64.b64encode(content.getvalue()).decode("ascii")


def as_int32(call: Call, output: Output, model: RoutedExperts, start: object) -> str:
    """As SGLang sends them."""
    return base64.b64encode(_rows(call, output, model, start).astype("<i4").tobytes()).decode("ascii")


def _rows(call: Call, output: Output, model: RoutedExperts, start: object) -> ExpertRows:
    return made_up_experts([*call.prompt_ids, *output.token_ids], model, start if type(start) is int and start > 0 else 0)


__all__ = ["as_int32", "as_npy", "made_up_experts"]
