"""Weights as a `safetensors` file, without torch.

    8 bytes      length of the header, little endian
    header       JSON: name -> {"dtype", "shape", "data_offsets": [start, end)}, padded with spaces to 8 bytes
    data         the tensors, one behind the other, little endian, rows first

numpy has no bfloat16: such a tensor is its upper 16 bits, as uint16.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bf16 = npt.NDArray[np.uint16]
"""bfloat16 by its bits."""
_ALIGNMENT = 8


def to_bf16(values: npt.NDArray[np.float32]) -> Bf16:
    """The nearest bfloat16 of each value, ties to even; finite values only."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    rounded: Bf16 = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return rounded


def write_safetensors(path: Path, tensors: Mapping[str, Bf16]) -> int:
    """Writes bfloat16 tensors in the order given, whole or not at all; answers the number of parameters."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, start + tensor.nbytes]}
        start += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    draft = path.with_suffix(".new")
    with draft.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor, dtype="<u2").tobytes())
    draft.replace(path)
    return sum(tensor.size for tensor in tensors.values())
