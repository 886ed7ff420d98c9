"""JSON values as calls may hold them: read strictly, and fit for the queue."""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

MAX_DEPTH = 64
"""Nesting of arguments; deeper ones only serve to break readers."""
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def decode(text: str) -> object:
    """The value that the whole of `text` is.

    Raises:
        ValueError: it is none (`json.JSONDecodeError` where a place can be named), or names one key twice.
        RecursionError: it is nested deeper than Python reads.
    """
    return _DECODER.decode(text)


def decode_at(text: str, place: int) -> tuple[object, int]:
    """The value at `place`, and where it ends; raises as `decode` does."""
    return _DECODER.raw_decode(text, place)


def packable(arguments: dict[str, object]) -> dict[str, object]:
    """The arguments with lone surrogates replaced.

    Raises:
        ValueError: nested too deep, a number beyond 64 bits or not finite, or keys that would become one.
    """
    return _packable_map(arguments, MAX_DEPTH)


def without_surrogates(text: str) -> str:
    """`text` with U+FFFD in place of what is no character and cannot be written as UTF-8."""
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


def _packable(value: object, depth: int) -> object:
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a whole number beyond 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number that is not finite")
    if isinstance(value, list):
        if depth == 0:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")
        return [_packable(entry, depth - 1) for entry in value]
    if isinstance(value, dict):
        return _packable_map(value, depth)
    return value


def _packable_map(value: dict[str, object], depth: int) -> dict[str, object]:
    if depth == 0:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    clean = {without_surrogates(key): _packable(entry, depth - 1) for key, entry in value.items()}
    if len(clean) < len(value):
        raise ValueError("keys that differ only in what is no character")
    return clean


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:20]} is too large a number")
    return value


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Two values under one key are two meanings: readers differ in which of them counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # the idiom
        raise ValueError(f"the key {twice[:40]!r} stands twice in one object")
    return found


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique)
"""Line breaks and tabs inside strings are read as meant; NaN, infinities and doubled keys are not JSON."""
