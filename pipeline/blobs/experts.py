"""What every part of the way calls routed experts: the blob's name and its dtype."""

from __future__ import annotations

import numpy as np

ROUTED_EXPERTS = "routed_experts"
"""A blob of shape [N, L, K]: for token t of its segment the K experts of each of L layers. N is at most the segment's tokens less one: the
last one that was sampled never went through the model."""


def expert_dtype(experts: int) -> np.dtype[np.uint8] | np.dtype[np.uint16]:
    """What the number of an expert takes: of the model, never of the experts that one sample met."""
    return np.dtype(np.uint8) if experts <= 256 else np.dtype(np.uint16)


__all__ = ["ROUTED_EXPERTS", "expert_dtype"]
