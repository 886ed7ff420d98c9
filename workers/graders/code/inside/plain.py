"""Values as data: what a called function returned, and what it is called with, as JSON that keeps Python's own kinds apart.

Only kinds that Python itself brings are written, by what they hold and not by what they say of themselves: of an object with an `__eq__`, a
`__str__` or a `tolist` of its own nothing but the value below it travels, or `NotPlain` is raised. Reading makes nothing but such values.

    as they are         null, booleans, texts, finite numbers, lists, maps whose keys are texts
    {"~": [kind, ...]}  tuples, sets, frozen sets, other maps, bytes, complex numbers, numbers JSON has not, long integers (hexadecimal)
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # of `typing`, without loading it
if TYPE_CHECKING:
    from typing import Any

TAG = "~"
LONG_BITS = 1024
"""Integers from here on travel as hexadecimal: Python refuses to read more than 4300 decimal digits."""


class NotPlain(Exception):
    """A value that is more than data."""


def to_plain(value: Any) -> Any:
    """The value as JSON can write it.

    Raises:
        NotPlain: it holds an object, or holds itself.
    """
    try:
        return _written(value)
    except RecursionError:
        raise NotPlain("a value that is nested too deeply") from None


def _written(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if value.bit_length() < LONG_BITS else {TAG: ["int", hex(value)]}
    if kind is float:
        return value if value - value == 0 else {TAG: ["float", float.__repr__(value)]}
    if kind is list:
        return [_written(one) for one in value]
    if kind is tuple:
        return {TAG: ["tuple", *[_written(one) for one in value]]}
    if kind is dict:
        if all(type(name) is str for name in value) and TAG not in value:
            return {name: _written(one) for name, one in value.items()}
        return {TAG: ["dict", *[[_written(name), _written(one)] for name, one in value.items()]]}
    if kind is set or kind is frozenset:
        return {TAG: [kind.__name__, *[_written(one) for one in value]]}
    if kind is bytes or kind is bytearray:
        return {TAG: ["bytes", value.hex()]}
    if kind is complex:
        return {TAG: ["complex", float.__repr__(value.real), float.__repr__(value.imag)]}
    return _written(_below(value))


def _below(value: Any) -> Any:
    """What a value of a derived kind holds, or a number or array of numpy's."""
    if isinstance(value, int):
        return int.__add__(value, 0)
    if isinstance(value, float):
        return float.__add__(value, 0.0)
    if isinstance(value, str):
        return str.__add__(value, "")
    if isinstance(value, list):
        return list(list.__iter__(value))
    if isinstance(value, tuple):
        return tuple(tuple.__iter__(value))
    if isinstance(value, dict):
        return dict(dict.items(value))
    if isinstance(value, frozenset):
        return frozenset(frozenset.__iter__(value))
    if isinstance(value, set):
        return set(set.__iter__(value))
    collections = sys.modules.get("collections")
    if collections is not None and type(value) is getattr(collections, "deque", None):
        return list(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return value.tolist()
    raise NotPlain("a value of the kind " + type(value).__name__[:80])


def from_plain(written: Any) -> Any:
    """The value that `to_plain` wrote.

    Raises:
        ValueError: nothing that it writes.
    """
    try:
        return _read(written)
    except (TypeError, IndexError, AttributeError, RecursionError, OverflowError) as broken:
        raise ValueError("not a value as they are written: " + str(broken)) from None


def _read(written: Any) -> Any:
    if isinstance(written, list):
        return [_read(one) for one in written]
    if not isinstance(written, dict):
        return written
    if TAG not in written:
        return {name: _read(one) for name, one in written.items()}
    kind, rest = written[TAG][0], written[TAG][1:]
    if kind == "int":
        return int(rest[0], 16)
    if kind == "float":
        return float(rest[0])
    if kind == "complex":
        return complex(float(rest[0]), float(rest[1]))
    if kind == "bytes":
        return bytes.fromhex(rest[0])
    if kind == "dict":
        return {_read(name): _read(one) for name, one in rest}
    makers: Any = {"tuple": tuple, "set": set, "frozenset": frozenset}
    if kind not in makers:
        raise ValueError("an unknown kind of value")
    return makers[kind]([_read(one) for one in rest])
