"""A microbatch as torch tensors that share its memory."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import InvalidRequest
from trainer_client.batches.packed import PackedRows
from trainer_client.batches.padded import PaddedRows

if TYPE_CHECKING:
    import torch


def as_tensors(microbatch: PaddedRows | PackedRows, device: torch.device | str | None = None) -> dict[str, torch.Tensor]:
    """The arrays of a microbatch by their names there, with their shapes and types. Nothing is copied on the CPU.

    Args:
        device: where they go, without waiting for that; None = they stay, and share memory with the microbatch.

    Raises:
        ImportError: there is no torch.
        InvalidRequest: no microbatch.
    """
    try:
        import torch  # whoever asks has it; nothing else here needs it
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            "as_tensors needs torch: install it in this environment (pip install torch), or use the numpy arrays of the microbatch",
            name="torch",
        ) from error
    if not isinstance(microbatch, PaddedRows | PackedRows):
        raise InvalidRequest(f"expected one of batch.microbatches(), got {type(microbatch).__name__}", field="microbatch")

    found = {}
    for field in fields(microbatch):
        value = getattr(microbatch, field.name)
        if not isinstance(value, np.ndarray):
            continue
        if value.strides and not value.strides[0]:  # one row seen as many
            tensor = torch.from_numpy(value[0].copy()).expand(value.shape)
        else:
            tensor = torch.from_numpy(value)
        found[field.name] = tensor if device is None else tensor.to(device, non_blocking=True)
    return found


__all__ = ["as_tensors"]
