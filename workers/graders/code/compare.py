"""Whether what came out is what was expected. Done in the worker, on plain data.

Texts are compared line by line: blanks at the ends of lines and at the end of the text do not count, everything else does, capital letters,
empty lines in the middle and blanks at the beginning included. With a tolerance, a word that is a number may differ by it when one of the
two has a point or an exponent; whole numbers are compared as they are written.

Values are compared as Python compares them, but that a tuple is the same as a list (the expected values come from JSON) and a map's
names are the same as their texts. With a tolerance, a float anywhere inside may differ by it. Decimals and fractions are numbers.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction

from workers.graders.code.inside.plain import TAG, library_value

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


def returned_value(written: object) -> object:
    """What a function returned, out of what `to_plain` wrote, as JSON would have it: tuples are lists, and names are texts.

    No number becomes a name or a member of a set here: hashes of numbers can be chosen, and so how long it takes.

    Raises:
        ValueError: nothing that it writes, or a kind that no expected value has.
    """
    try:
        return _returned(written)
    except (TypeError, IndexError, RecursionError, OverflowError) as broken:
        raise ValueError(f"cannot be read: {broken}") from broken


def _returned(written: object) -> object:
    if isinstance(written, list):
        return [_returned(one) for one in written]
    if not isinstance(written, dict):
        return written
    if TAG not in written:
        return {name: _returned(one) for name, one in written.items()}
    kind, *rest = written[TAG]
    if kind in ("tuple", "deque"):
        return [_returned(one) for one in rest]
    if kind == "dict":
        named = [(_name(_returned(name)), _returned(one)) for name, one in rest]
        if not all(isinstance(name, str) for name, _ in named):
            raise ValueError("a map with a name that is no text")
        return dict(named)
    if kind == "int":
        return int(rest[0], 16)
    if kind == "float":
        return float(rest[0])
    if kind in ("decimal", "fraction"):
        return library_value(kind, [_returned(one) for one in rest])
    raise ValueError(f"a value of the kind {str(kind)[:80]}")


def same_value(found: object, expected: object, float_tol: float | None = None) -> bool:
    """Whether a function returned the expected value.

    Args:
        found: as `returned_value` makes it.
    """
    try:
        return _same_value(found, expected, float_tol)
    except (RecursionError, ArithmeticError, ValueError):
        return False


def _same_value(found: object, expected: object, float_tol: float | None) -> bool:
    if isinstance(expected, list | tuple):
        if not isinstance(found, list) or len(found) != len(expected):
            return False
        return all(_same_value(one, other, float_tol) for one, other in zip(found, expected, strict=True))
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            return False
        named, wanted = ({_name(name): value for name, value in each.items()} for each in (found, expected))
        return named.keys() == wanted.keys() and all(_same_value(named[name], value, float_tol) for name, value in wanted.items())
    if isinstance(found, float | Decimal | Fraction) or isinstance(expected, float):
        if not isinstance(found, int | float | Decimal | Fraction) or not isinstance(expected, int | float):
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
