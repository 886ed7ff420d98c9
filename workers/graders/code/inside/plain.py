"""Values as data: what a called function returned, and what it is called with, as JSON that keeps Python's own kinds apart.

Only kinds that Python itself brings are written, by what they hold and not by what they say of themselves: of an object with an `__eq__`, a
`__str__` or a `tolist` of its own nothing but the value below it travels, or `NotPlain` is raised. Reading makes nothing but such values.

    as they are         null, booleans, texts, finite numbers, lists, maps whose keys are texts
    {"~": [kind, ...]}  tuples, sets, frozen sets, other maps, bytes, complex numbers, numbers JSON has not, long integers (hexadecimal),
                        deques, ranges, decimals, fractions, days, times, stretches of time
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # of `typing`, without loading it
if TYPE_CHECKING:
    from typing import Any

TAG = "~"
LONG_BITS = 1024
"""Integers from here on travel as hexadecimal: Python refuses to read more than 4300 decimal digits."""
MOST_FRACTION_BITS, MOST_DECIMAL_CHARS = 8192, 4096
"""Longer ones are more than data: making a fraction takes the square of its length."""


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
    if kind is range:
        return {TAG: ["range", *[_written(one) for one in (value.start, value.stop, value.step)]]}
    of_library = _of_library(value)
    return _written(_below(value)) if of_library is None else {TAG: of_library}


def _of_library(value: Any) -> list[Any] | None:
    """A value of the standard library's that is data, by its kind; None when it is something else."""

    def is_a(module: str, name: str) -> bool:
        loaded = sys.modules.get(module)
        return loaded is not None and type(value) is getattr(loaded, name, None)

    if is_a("collections", "deque"):
        return ["deque", *[_written(one) for one in value]]
    if is_a("decimal", "Decimal"):
        text = str(value)
        if len(text) <= MOST_DECIMAL_CHARS:
            return ["decimal", text]
    elif is_a("fractions", "Fraction"):
        parts = [value.numerator, value.denominator]
        if all(type(part) is int and part.bit_length() <= MOST_FRACTION_BITS for part in parts):
            return ["fraction", *[_written(part) for part in parts]]
    elif is_a("datetime", "date"):
        return ["date", value.year, value.month, value.day]
    elif is_a("datetime", "timedelta"):
        return ["timedelta", value.days, value.seconds, value.microseconds]
    elif is_a("datetime", "datetime") and value.tzinfo is None:
        return ["datetime", value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond]
    elif is_a("datetime", "time") and value.tzinfo is None:
        return ["time", value.hour, value.minute, value.second, value.microsecond]
    return None


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
    if kind in makers:
        return makers[kind]([_read(one) for one in rest])
    return library_value(kind, [_read(one) for one in rest])


def library_value(kind: str, parts: list[Any]) -> Any:
    """A value of the standard library's.

    Raises:
        ValueError: there is no such kind, or none of these parts.
    """
    if kind == "deque":
        import collections

        return collections.deque(parts)
    if kind == "decimal" and len(parts) == 1 and type(parts[0]) is str and len(parts[0]) <= MOST_DECIMAL_CHARS:
        import decimal

        try:
            return decimal.Decimal(parts[0])
        except ArithmeticError:
            raise ValueError("no decimal number") from None
    if not all(type(part) is int and part.bit_length() <= MOST_FRACTION_BITS for part in parts):
        raise ValueError("an unknown kind of value")
    if kind == "range":
        return range(*parts)
    if kind == "fraction" and len(parts) == 2 and parts[1]:
        import fractions

        return fractions.Fraction(*parts)
    if kind in ("date", "time", "datetime", "timedelta"):
        import datetime

        return getattr(datetime, kind)(*parts)
    raise ValueError("an unknown kind of value")
