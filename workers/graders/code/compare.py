"""Whether what came out is what was expected. Done in the worker, on plain data.

Texts are compared line by line: blanks at the ends of lines and at the end of the text do not count, everything else does, capital letters,
empty lines in the middle and blanks at the beginning included. With a tolerance, a word that is a number may differ by it when one of the
two has a point or an exponent; whole numbers are compared as they are written.

Values are compared as Python compares them, but that a tuple is the same as a list (the expected values come from JSON) and a map's
names are the same as their texts. With a tolerance, a float anywhere inside may differ by it.
"""

from __future__ import annotations

import math
import re

BLANKS = b" \t\r\f\v"
NUMBER = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
HAS_POINT = re.compile(rb"[.eE]")
LONGEST_NUMBER = 400
"""A longer word is compared as a text."""


def same_text(found: bytes, expected: str, float_tol: float | None = None) -> bool:
    """Whether a program's output is the expected one."""
    lines, wanted = _lines(found), _lines(expected.encode("utf-8", "surrogatepass"))
    if lines == wanted:
        return True
    if float_tol is None or len(lines) != len(wanted):
        return False
    return all(one == other or _same_line(one, other, float_tol) for one, other in zip(lines, wanted, strict=True))


def _lines(text: bytes) -> list[bytes]:
    lines = [line.rstrip(BLANKS) for line in text.split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_line(found: bytes, expected: bytes, float_tol: float) -> bool:
    """Words and what is between them in turn; numbers by their values."""
    words, wanted = re.split(rb"([ \t\f\v]+)", found), re.split(rb"([ \t\f\v]+)", expected)
    return len(words) == len(wanted) and all(
        one == other or _same_number(one, other, float_tol) for one, other in zip(words, wanted, strict=True)
    )


def _same_number(found: bytes, expected: bytes, float_tol: float) -> bool:
    if max(len(found), len(expected)) > LONGEST_NUMBER or not (HAS_POINT.search(found) or HAS_POINT.search(expected)):
        return False
    if not NUMBER.match(found) or not NUMBER.match(expected):
        return False
    return _near(float(found), float(expected), float_tol)


def _near(found: float, expected: float, float_tol: float) -> bool:
    if not (math.isfinite(found) and math.isfinite(expected)):  # also what is too large for a float
        return False
    return abs(found - expected) <= float_tol * max(1.0, abs(expected))


def same_value(found: object, expected: object, float_tol: float | None = None) -> bool:
    """Whether a function returned the expected value.

    Args:
        found, expected: plain values, as `from_plain` makes them.
    """
    try:
        return _same_value(found, expected, float_tol)
    except (RecursionError, OverflowError, ValueError):
        return False


def _same_value(found: object, expected: object, float_tol: float | None) -> bool:
    if isinstance(expected, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(expected):
            return False
        return all(_same_value(one, other, float_tol) for one, other in zip(found, expected, strict=True))
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            return False
        named, wanted = ({_name(name): value for name, value in each.items()} for each in (found, expected))
        return named.keys() == wanted.keys() and all(_same_value(named[name], value, float_tol) for name, value in wanted.items())
    if isinstance(found, float) or isinstance(expected, float):
        if not isinstance(found, int | float) or not isinstance(expected, int | float):
            return False
        if math.isnan(found) and math.isnan(expected):
            return True
        return found == expected or (float_tol is not None and _near(float(found), float(expected), float_tol))
    return found == expected


def _name(name: object) -> object:
    """A map's name as JSON writes it."""
    if isinstance(name, bool):
        return "true" if name else "false"
    return "null" if name is None else str(name) if isinstance(name, int | float) else name
