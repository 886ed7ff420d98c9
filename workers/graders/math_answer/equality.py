"""Whether two expressions are worth the same.

Constants are compared exactly when both are cheap fractions, else to 50 digits and, when those agree, once more to 160. Expressions
with variables are compared at fixed scattered points, positive ones first; a point where either side leaves the reals says nothing as
long as others remain. Three answers: yes, no, and None when nothing could be computed.

Tolerance policy. Numbers are compared strictly: a rounded decimal is not the exact value it came from, so 166.67 is not 500/3, nor 0.333
a third. A decimal stands for another value only when it is that value to the last digit written, rounded or cut off, and has at least
`MIN_SIGNIFICANT` digits; the noise of double precision is forgiven from 15 digits on. A task that wants more leeway says so with a
`Tolerance` of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from workers.graders.math_answer.expression import Node, key, symbols, walk
from workers.graders.math_answer.fractions_of import exact
from workers.graders.math_answer.marks import TRIGONOMETRIC, imaginary_as_in, log_bases, mark_readings, same_digits, without_marks
from workers.graders.math_answer.values import Evaluator, LeavesReals, Undefined
from workers.graders.math_answer.worked_out import is_worked_out

MIN_SIGNIFICANT = 8
"""Digits a decimal must show before it may stand for an irrational or endless value; about single precision, beyond a hand's rounding."""
_NOISE_DIGITS = 15
_NOISE = Fraction(5, 10**15)
_DIGITS, _AGREE, _NEAR_ZERO = 50, -30, -40
_DIGITS_AGAIN, _AGREE_AGAIN, _NEAR_ZERO_AGAIN = 160, -130, -140
"""Working precision; powers of ten of the relative difference that counts as equal and of the size that may be a true zero."""
_LARGE_BITS = 60
"""From numbers of this size on, agreement at the first precision does not tell a number from its successor."""
_POSITIVE = ((0.21, 0.93), (1.07, 2.9), (2.1, 6.3), (0.4, 1.9))
_NEGATIVE = ((-2.7, -0.3), (-6.1, -1.2))
_WHOLE = ((3, 2), (2, 3), (6, 5), (7, 1), (4, 3), (5, 7))
"""Smallest value and step from one variable to the next at points of whole numbers."""
_COUNTING = frozenset(("fact", "dfact", "binom"))
_MIN_POINTS = 3

Point = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a task grants or demands for numbers, beside the strict policy."""

    relative: float = 0.0
    absolute: float = 0.0
    worked_out: bool = False
    """Demand that the answer is worked out: no sum where a number is asked for, no function that the reference does without, nothing
    that only computer algebra can value. Without this a policy can put the question's own expression into its box."""

    @property
    def has_leeway(self) -> bool:
        """Whether a number may differ at all."""
        return self.relative > 0 or self.absolute > 0

    def admits(self, gold: Any, answer: Any) -> bool:
        """Whether `answer` is within the leeway around `gold`."""
        share = Fraction(self.relative) if isinstance(gold, Fraction) else self.relative
        return bool(abs(answer - gold) <= max(self.absolute, share * abs(gold)))


STRICT = Tolerance()


def same_value(gold: Node, answer: Node, tolerance: Tolerance = STRICT) -> bool | None:
    """Whether `answer` is worth what `gold` is, under any honest reading of percent signs, degree signs and bare logarithms."""
    if tolerance.worked_out and not is_worked_out(gold, answer):
        return False
    if key(gold) == key(answer):
        return True
    answer = imaginary_as_in(gold, answer)
    infinite = _sign_of_infinity(gold), _sign_of_infinity(answer)
    if infinite != (0, 0):
        return infinite[0] == infinite[1]
    if (digits := same_digits(gold, answer)) is not None:
        return digits
    undecided = False
    for gold_read, answer_read in mark_readings(gold, answer):
        for log_base in log_bases(gold, answer):
            same = _same(gold_read, answer_read, log_base, tolerance)
            if same:
                return True
            undecided |= same is None
    return None if undecided else False


def proportional(gold: Node, answer: Node) -> Fraction | bool | None:
    """Whether one expression is a constant multiple of the other, as the two sides of one equation are.

    Returns:
        False, None when undecided, else 1 or -1 for the sign of the factor.
    """
    names = sorted(symbols(gold) | symbols(answer))
    if not names:
        return None
    factor: Any = None
    found = 0
    for point in _points(names, (*_POSITIVE, *_NEGATIVE)):
        evaluator = Evaluator(_DIGITS, point)
        try:
            left, right = evaluator.value(gold), evaluator.value(answer)
        except Undefined:
            continue
        if left == 0 or right == 0:
            if left == right:
                continue
            return False
        ratio = right / left
        if factor is None:
            factor = ratio
        elif abs(ratio - factor) > abs(factor) * evaluator.mp.mpf(10) ** -25:
            return False
        found += 1
    if found < _MIN_POINTS:
        return None
    return Fraction(1 if not isinstance(factor, evaluator.mp.mpc) and factor > 0 else -1)


def number(node: Node) -> Any:
    """The value of a constant as a real number, infinities included; None when it has none or has variables."""
    infinite = _sign_of_infinity(node)
    evaluator = Evaluator(_DIGITS)
    if infinite:
        return evaluator.mp.inf * infinite
    if symbols(node):
        return None
    try:
        value = evaluator.value(without_marks(node, Fraction(1, 100), False))
    except Undefined:
        return None
    return None if isinstance(value, evaluator.mp.mpc) else value


def _same(gold: Node, answer: Node, log_base: str | None, tolerance: Tolerance) -> bool | None:
    names = sorted(symbols(gold) | symbols(answer))
    if names:
        return _same_function(gold, answer, names, log_base)
    exact_gold, exact_answer = exact(gold), exact(answer)
    if exact_gold is not None and exact_answer is not None:
        if exact_gold == exact_answer:
            return True
        if gold.op != "num" or answer.op != "num" or max(gold.decimals, answer.decimals) >= 0 or tolerance.has_leeway:
            return _stands_for(gold, exact_answer, answer, exact_gold) or (
                tolerance.has_leeway and tolerance.admits(exact_gold, exact_answer)
            )
        return False
    return _same_constant(gold, answer, log_base, tolerance)


def _stands_for(gold: Node, answer_value: Any, answer: Node, gold_value: Any) -> bool:
    """Whether a decimal on one side is the other side's value, to the digits it shows."""
    return _is_rounding(gold, answer_value) or _is_rounding(answer, gold_value)


def _is_rounding(decimal: Node, value: Any) -> bool:
    sign = 1
    while decimal.op == "neg":
        decimal, sign = decimal.args[0], -sign
    if decimal.op != "num" or decimal.decimals < 0 or decimal.significant < MIN_SIGNIFICANT:
        return False
    written = sign * decimal.number
    if not isinstance(value, Fraction):
        written = Evaluator(_DIGITS).value(Node("num", number=written))
        unit = Evaluator(_DIGITS).mp.mpf(10) ** -decimal.decimals
    else:
        unit = Fraction(10) ** -decimal.decimals
    difference = abs(written - value)
    noise = Fraction(_NOISE) if isinstance(value, Fraction) else float(_NOISE)
    return bool(difference < unit or (decimal.significant >= _NOISE_DIGITS and difference <= noise * abs(value)))


def _same_constant(gold: Node, answer: Node, log_base: str | None, tolerance: Tolerance) -> bool | None:
    evaluator = Evaluator(_DIGITS, log_base=log_base)
    try:
        expected = evaluator.value(gold)
    except Undefined:
        return None
    try:
        found = evaluator.value(answer)
    except Undefined:
        return False
    if tolerance.has_leeway and tolerance.admits(expected, found):
        return True
    if _agree(evaluator, expected, found, _AGREE, _NEAR_ZERO):
        again = Evaluator(_DIGITS_AGAIN + _digits_of(evaluator), log_base=log_base)
        return _agree(again, again.value(gold), again.value(answer), _AGREE_AGAIN - _digits_of(evaluator), _NEAR_ZERO_AGAIN)
    if _stands_for(gold, found, answer, expected):
        return True
    shown = [
        part.significant for side in (gold, answer) for part in walk(side) if part.op == "num" and part.significant > MIN_SIGNIFICANT + 1
    ]
    return bool(shown and abs(expected - found) <= abs(expected) * evaluator.mp.mpf(10) ** (1 - min(shown)))


def _agree(evaluator: Evaluator, one: Any, other: Any, agree: int, near_zero: int) -> bool:
    ten = evaluator.mp.mpf(10)
    difference = abs(one - other)
    return bool(difference <= ten**agree * max(abs(one), abs(other)) or difference < ten**near_zero)


def _digits_of(evaluator: Evaluator) -> int:
    """Decimal digits before the point of the largest number met, in steps, so that few precisions occur."""
    return -(-int(evaluator.largest_bits * 0.302) // 100) * 100


def _same_function(gold: Node, answer: Node, names: list[str], log_base: str | None) -> bool | None:
    """Both sides at several points, among the reals if enough points allow it, else among complex numbers, at last at whole numbers."""
    if any(part.op in _COUNTING and symbols(part) for side in (gold, answer) for part in walk(side)):
        return _at_points(gold, answer, _whole_points(names), log_base, real=True)
    complex_from_start = any(part.op == "const" and part.name == "i" for side in (gold, answer) for part in walk(side))
    if not complex_from_start:
        same = _at_points(gold, answer, _points(names, (*_POSITIVE, *_NEGATIVE)), log_base, real=True)
        if same is not None:
            return same or _at_whole_numbers(gold, answer, names, log_base)
    same = _at_points(gold, answer, _points(names, _POSITIVE), log_base, real=False)
    return True if same else _at_whole_numbers(gold, answer, names, log_base) or same


def _at_whole_numbers(gold: Node, answer: Node, names: list[str], log_base: str | None) -> bool:
    """Equality for whole values of the variables; looked at only for expressions that alternate, such as (-1)^n and cos(n pi)."""
    if not any(_alternates(side) for side in (gold, answer)):
        return False
    return _at_points(gold, answer, _whole_points(names), log_base, real=True) is True


def _whole_points(names: list[str]) -> list[Point]:
    """Whole values of the variables, all different, rising with the names at one point and falling at the next."""
    context = Evaluator(_DIGITS).mp
    return [
        {name: context.mpf(least + step * rank) for rank, name in enumerate(names if place % 2 == 0 else reversed(names))}
        for place, (least, step) in enumerate(_WHOLE)
    ]


def _alternates(node: Node) -> bool:
    for part in walk(node):
        if part.op == "pow" and symbols(part.args[1]) and (base := exact(part.args[0])) is not None and base < 0:
            return True
        if part.op == "fn" and part.name in TRIGONOMETRIC and symbols(part) and any(inner.name == "pi" for inner in walk(part)):
            return True
    return False


def _at_points(gold: Node, answer: Node, points: Sequence[Point], log_base: str | None, *, real: bool) -> bool | None:
    agreed = 0
    for hints, point in enumerate(points):
        evaluator = Evaluator(_DIGITS, point, log_base=log_base, real=real, hints=hints)
        try:
            expected, found = evaluator.value(gold), evaluator.value(answer)
        except (Undefined, LeavesReals):
            continue
        if not _agree(evaluator, expected, found, -25, -38):
            return False
        if evaluator.largest_bits > _LARGE_BITS:
            closer = Evaluator(_DIGITS + _digits_of(evaluator), point, log_base=log_base, real=real, hints=hints)
            if not _agree(closer, closer.value(gold), closer.value(answer), -25 - _digits_of(evaluator), -38):
                return False
        agreed += 1
    return True if agreed >= _MIN_POINTS else None


def _points(names: list[str], ranges: Sequence[tuple[float, float]]) -> list[Point]:
    """One value a variable for each range, scattered by the name, the same in every process."""
    context = Evaluator(_DIGITS).mp
    return [
        {name: context.mpf(low) + context.mpf(high - low) * zlib.crc32(f"{place}/{name}".encode()) / 2**32 for name in names}
        for place, (low, high) in enumerate(ranges)
    ]


def _sign_of_infinity(node: Node) -> int:
    if node.op == "neg":
        return -_sign_of_infinity(node.args[0])
    return 1 if node.op == "const" and node.name == "inf" else 0
