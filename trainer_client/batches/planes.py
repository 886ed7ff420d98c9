"""The arrays of a microbatch, all of one shape, in one piece of memory.

One large allocation is given in huge pages where a system has them; as ten of one megabyte, most of the time of a batch went into the
kernel's pages (measured for 8 rows of 32,768 tokens: 3.4 ms apart, 0.4 ms together).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pipeline.messages import F32
from trainer_client.batches.rows import I32, NO_VERSION, Row

I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
DTYPES: Mapping[str, DTypeLike] = {
    "token_ids": np.int64,
    "behaviour_logprobs": np.float32,
    "versions": np.int32,
    "temperatures": np.float32,
    "advantages": np.float32,
    "weights": np.float32,
    "sampled_mask": np.bool_,
    "loss_mask": np.bool_,
    "attention_mask": np.bool_,
}
"""Of each array; the widest first, so that all are aligned."""


@dataclass(frozen=True, slots=True)
class Planes:
    """What every microbatch has, for nothing but padding yet."""

    token_ids: I64
    behaviour_logprobs: F32
    versions: I32
    temperatures: F32
    advantages: F32
    weights: F32
    sampled_mask: Bool
    loss_mask: Bool
    attention_mask: Bool

    def put(self, at: tuple[int | slice, ...], row: Row) -> None:
        """Writes a row.

        Args:
            at: index of a stretch as long as the row.
        """
        self.token_ids[at] = row.token_ids
        self.attention_mask[at] = True
        self.sampled_mask[at] = row.sampled_mask
        self.loss_mask[at] = row.loss_mask
        row.fill_logprobs(self.behaviour_logprobs[at])
        row.fill_versions(self.versions[at])
        row.fill_temperatures(self.temperatures[at])
        row.fill_advantages(self.advantages[at])
        row.fill_weights(self.weights[at])


def planes(shape: tuple[int, ...], pad_id: int) -> Planes:
    """Arrays of one shape."""
    size = int(np.prod(shape))
    memory = np.zeros(size * sum(np.dtype(dtype).itemsize for dtype in DTYPES.values()), np.uint8)
    at = 0

    def take(dtype: DTypeLike) -> NDArray[Any]:
        nonlocal at
        n_bytes = size * np.dtype(dtype).itemsize
        found = memory[at : at + n_bytes].view(dtype).reshape(shape)
        at += n_bytes
        return found

    made = Planes(**{name: take(dtype) for name, dtype in DTYPES.items()})
    if pad_id:
        made.token_ids.fill(pad_id)
    made.versions.fill(NO_VERSION)
    made.temperatures.fill(1.0)
    return made


__all__ = ["I64", "Bool", "Planes", "planes"]
