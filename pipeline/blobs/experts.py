"""What every part of the way calls routed experts: the blob's name and its dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUTED_EXPERTS = "routed_experts"
"""A blob of shape [N, L, K]: for token t of its segment the K experts of each of L layers. N is at most the segment's tokens less one: the
last one that was sampled never went through the model."""


ExpertRows = NDArray[np.uint8] | NDArray[np.uint16]
"""Shape [N, L, K]: experts of N tokens one after another; of 16 bits where the model has more than 256 a layer."""


def expert_rows(numbers: NDArray[Any], experts: int) -> ExpertRows:
    """Numbers of experts in as few bits as the model's take: whether 8 or 16 never hangs on which experts one sample met.

    Args:
        numbers: shape [N, L, K], each from 0 to `experts - 1`.
        experts: of the model, a layer.
    """
    return np.ascontiguousarray(numbers, np.uint8) if experts <= 256 else np.ascontiguousarray(numbers, np.uint16)


__all__ = ["ROUTED_EXPERTS", "ExpertRows", "expert_rows"]
