"""What the types of other trainers have, as `record_contracts.py` read it from their own packages."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALL: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("contracts.json").read_text(encoding="utf-8"))


def check_fields(name: str, given: Mapping[str, object]) -> None:
    """Every field that the type needs is given, and none that it does not have."""
    contract = _ALL[name]
    assert not set(contract["required"]) - given.keys(), f"{name} of {contract['version']} needs more"
    assert not given.keys() - contract["fields"].keys(), f"{name} of {contract['version']} has no such fields"


def check_arrays(name: str, given: Mapping[str, NDArray[Any]], **sizes: int) -> None:
    """Every array has the kind of number and the shape that is written beside its field, as in `float32 [N, T]`.

    Args:
        sizes: what the letters stand for; a letter that is not among them may be anything.
    """
    check_fields(name, given)
    for field, array in given.items():
        dtype, _, shape = _ALL[name]["fields"][field].partition(" ")
        letters = [letter.strip() for letter in shape.strip("[]").split(",")]
        assert array.dtype == np.dtype(dtype), field
        assert array.ndim == len(letters), field
        assert all(sizes.get(letter, size) == size for letter, size in zip(letters, array.shape, strict=True)), field


def check_methods(name: str, given: type) -> None:
    """The class has the methods of a protocol, which can be called as that says."""
    contract = _ALL[name]
    for method, signature in contract["methods"].items():
        wanted = [
            part.partition(":")[0].strip() for part in signature[1 : signature.rindex(")")].split(",") if ":" in part or part == "self"
        ]
        has = list(inspect.signature(getattr(given, method)).parameters)
        assert has == [part for part in wanted if part.isidentifier()], f"{method} of {contract['version']}"


__all__ = ["check_arrays", "check_fields", "check_methods"]
