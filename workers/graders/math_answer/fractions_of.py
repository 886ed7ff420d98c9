"""The exact value of an expression, where it is a fraction and cheap."""

from __future__ import annotations

from fractions import Fraction
from math import comb, factorial, gcd, lcm

from workers.graders.math_answer.expression import Node

MAX_EXACT_BITS = 70_000
"""Room for some 20,000 digits; a greatest common divisor of two such numbers takes a few milliseconds."""
MAX_EXACT_FACTORIAL = 5_000


def exact(node: Node) -> Fraction | None:
    """The value as a fraction, or None when it is irrational, not constant, not defined or too large to be cheap."""
    try:
        return _exact(node)
    except (ZeroDivisionError, OverflowError):
        return None


def _exact(node: Node) -> Fraction | None:
    op = node.op
    if op in ("num", "based"):
        return node.number
    if op not in ("add", "mul", "div", "neg", "pow", "root", "fact", "dfact", "binom", "fn"):
        return None
    values: list[Fraction] = []
    for arg in node.args:
        value = _exact(arg)
        if value is None:
            return None
        values.append(value)
    result = _combine(node, values)
    return result if result is not None and _bits(result) <= MAX_EXACT_BITS else None


def _combine(node: Node, values: list[Fraction]) -> Fraction | None:
    op = node.op
    if op == "add":
        return sum(values, Fraction(0))
    if op == "mul":
        product = Fraction(1)
        for value in values:
            product *= value
            if _bits(product) > MAX_EXACT_BITS:
                return None
        return product
    if op == "div":
        return values[0] / values[1]
    if op == "neg":
        return -values[0]
    if op == "pow":
        return _exact_power(values[0], values[1])
    if op == "root":
        return _exact_root(values[0], values[1])
    if op in ("fact", "dfact"):
        count = values[0]
        if count.denominator != 1 or not 0 <= count <= MAX_EXACT_FACTORIAL:
            return None
        return Fraction(factorial(int(count)) if op == "fact" else double_factorial(int(count)))
    if op == "binom":
        top, bottom = values
        small = top.denominator == bottom.denominator == 1 and bottom >= 0 and 0 <= top <= 5_000
        return Fraction(comb(int(top), int(bottom))) if small else None
    return _exact_function(node.name, values)


def _exact_function(name: str, values: list[Fraction]) -> Fraction | None:
    first = values[0]
    if name == "abs":
        return abs(first)
    if name == "floor":
        return Fraction(first.numerator // first.denominator)
    if name == "ceil":
        return Fraction(-(-first.numerator // first.denominator))
    if name == "max":
        return max(values)
    if name == "min":
        return min(values)
    if name == "sgn":
        return Fraction((first > 0) - (first < 0))
    if name in ("gcd", "lcm") and all(value.denominator == 1 for value in values):
        whole = [int(value) for value in values]
        return Fraction(gcd(*whole) if name == "gcd" else lcm(*whole))
    return None


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if base in (0, 1) and exponent > 0:
        return base
    if exponent.denominator != 1:
        root = _exact_root(Fraction(exponent.denominator), base) if base > 0 and exponent.denominator < 64 else None
        return None if root is None else _exact_power(root, Fraction(exponent.numerator))
    power = exponent.numerator
    if base == -1:
        return Fraction(-1 if power % 2 else 1)
    if abs(power) > MAX_EXACT_BITS or _bits(base) * abs(power) > MAX_EXACT_BITS:
        return None
    return base**power


def _exact_root(index: Fraction, radicand: Fraction) -> Fraction | None:
    """The real root when it is a fraction."""
    if index.denominator != 1 or not 2 <= index < 64 or _bits(radicand) > 4_000:
        return None
    degree = int(index)
    if radicand < 0 and degree % 2 == 0:
        return None
    above, below = _integer_root(abs(radicand.numerator), degree), _integer_root(radicand.denominator, degree)
    if above is None or below is None:
        return None
    return Fraction(above if radicand >= 0 else -above, below)


def _integer_root(value: int, degree: int) -> int | None:
    if value < 2:
        return value
    guess = 1 << -(-value.bit_length() // degree)
    while True:
        better = ((degree - 1) * guess + value // guess ** (degree - 1)) // degree
        if better >= guess:
            return guess if guess**degree == value else None
        guess = better


def double_factorial(count: int) -> int:
    product = 1
    for factor in range(count, 0, -2):
        product *= factor
    return product


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
