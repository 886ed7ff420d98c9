"""What an expression is worth: exactly where that is cheap, else to many digits, and never at any price.

No evaluation here can run away. A power, factorial or argument beyond the bounds below is not computed: it stands for an unknown
number that depends on its text alone, so that equal texts stay equal and anything else is unequal to it. Exact fractions are kept
below `MAX_EXACT_BITS`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import comb, factorial, gcd, lcm
from typing import Any

import mpmath

from workers.graders.math_answer.expression import Node, key

MAX_EXACT_BITS = 70_000
"""Room for some 20,000 digits; a greatest common divisor of two such numbers takes a few milliseconds."""
MAX_EXACT_FACTORIAL = 5_000
MAX_VALUE_BITS = 8_000
"""A number above 2 to this power, or below 2 to its negative, is not computed to digits, only named: to tell it from its successor takes as
many binary digits."""
MAX_ARGUMENT_BITS = 2_000
"""A sine of a number above 2 to this power is not computed."""

_UNKNOWN_FROM, _UNKNOWN_SPREAD = 17, 1_000
"""Where the numbers lie that stand for what is not computed: away from the small numbers that answers are."""
_HUGE_EXPONENT_BITS = 64
_ODD_ROOTS = range(3, 64, 2)

_GROWING = frozenset(("pow", "root", "fact", "dfact", "binom", "fn"))
"""What of an uncomputed number is itself not computed; sums and products with one are, so that terms can cancel."""

Number = Any
"""An mpmath number, real or complex; mpmath has no types."""


class Undefined(Exception):
    """The expression has no value there: a division by zero, a logarithm of zero, or an infinity."""


class LeavesReals(Exception):
    """A real argument gave a value that is not real."""


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
        return Fraction(factorial(int(count)) if op == "fact" else _double_factorial(int(count)))
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


def _double_factorial(count: int) -> int:
    product = 1
    for factor in range(count, 0, -2):
        product *= factor
    return product


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


@lru_cache(maxsize=8)
def _context(digits: int) -> Any:
    """An mpmath context of our own for each precision: making one costs more than a comparison."""
    context = mpmath.mp.clone()
    context.dps = digits
    return context


class Evaluator:
    """Values to `digits` digits, for given values of the variables.

    Args:
        digits: working precision.
        variables: their values; every variable of the expression must be there.
        log_base: base of a logarithm written without one; None stands for one that nobody knows.
        real: raise `LeavesReals` where a real expression leaves the reals, instead of going on with complex numbers.
        hints: varies the unknown numbers, so that an accidental equality does not repeat.
    """

    def __init__(
        self,
        digits: int,
        variables: Mapping[str, Number] | None = None,
        *,
        log_base: str | None = None,
        real: bool = False,
        hints: int = 0,
    ) -> None:
        self.mp = _context(digits)
        self._variables = variables or {}
        self._log_base, self._real, self._hints = log_base, real, hints
        self.largest_bits = 0.0
        """Binary logarithm of the largest number met; to add one to that number takes as many digits."""
        self._only_named: set[int] = set()

    def value(self, node: Node) -> Number:
        """The value of `node`.

        Raises:
            Undefined: it has none.
            LeavesReals: it is not real, and only real values were asked for.
        """
        try:
            result = self._value(node)
        except (ZeroDivisionError, OverflowError, ValueError) as broken:
            raise Undefined(str(broken)) from broken
        if not self.mp.isfinite(result):
            raise Undefined("not finite")
        return result

    def unknown(self, node: Node) -> Number:
        """A number that depends on the text of `node` alone."""
        self._only_named.add(id(node))
        return self._scattered(key(node))

    def _scattered(self, text: str) -> Number:
        encoded = f"{self._hints}:{text}".encode()
        share = self.mp.mpf(zlib.crc32(encoded) ^ (zlib.crc32(encoded[::-1]) << 32)) / self.mp.mpf(2) ** 64
        return _UNKNOWN_FROM + _UNKNOWN_SPREAD * share

    def _value(self, node: Node) -> Number:
        op = node.op
        if op == "num" or op == "based":
            return self.mp.mpf(node.number.numerator) / node.number.denominator
        if op == "sym":
            return self._variables[node.name] if node.name in self._variables else self._scattered(node.name)
        if op == "const":
            return self._constant(node.name)
        values = [self._value(arg) for arg in node.args]
        if op in _GROWING and any(id(arg) in self._only_named for arg in node.args):
            return self.unknown(node)
        rule = _RULES.get(op)
        if rule is None:
            raise Undefined(f"no rule for {op}")
        result = self._rounded(rule(self, node, values))
        size = self._log2(result)
        if size > MAX_VALUE_BITS or (result != 0 and size < -MAX_VALUE_BITS):
            return self.unknown(node)
        self.largest_bits = max(self.largest_bits, size)
        if self._real and isinstance(result, self.mp.mpc):
            raise LeavesReals
        return result

    def _rounded(self, value: Number) -> Number:
        """A complex number without a part that is nothing beside the other: mpmath takes seconds over such numbers."""
        if not isinstance(value, self.mp.mpc) or value.real == 0 or value.imag == 0:
            return value
        lead = self._log2(value.real) - self._log2(value.imag)
        if lead > MAX_ARGUMENT_BITS:
            return self.mp.mpc(value.real, 0)
        return self.mp.mpc(0, value.imag) if lead < -MAX_ARGUMENT_BITS else value

    def _constant(self, name: str) -> Number:
        if name == "i":
            return self.mp.mpc(0, 1)
        if name == "pi":
            return +self.mp.pi
        if name == "e":
            return +self.mp.e
        raise Undefined(name)

    def _log2(self, value: Number) -> float:
        """Roughly the binary logarithm of the size; very negative for zero."""
        return float(self.mp.mag(value)) if value != 0 else -1e18

    def _power(self, node: Node, values: list[Number]) -> Number:
        base, exponent = values
        if base == 0:
            if self.mp.re(exponent) > 0:
                return base
            if exponent == 0:
                return self.mp.mpf(1)
            raise Undefined("a power of zero")
        if exponent == 0:
            return self.mp.mpf(1)
        if self._is_out_of_bounds(base, exponent):
            return self.unknown(node)
        real = not isinstance(base, self.mp.mpc) and not isinstance(exponent, self.mp.mpc)
        if real and base < 0 and not self.mp.isint(exponent):
            odd_root = self._odd_root(node.args[1])
            if odd_root is not None:
                numerator, denominator = odd_root
                return (-1 if numerator % 2 else 1) * abs(base) ** (self.mp.mpf(numerator) / denominator)
        return base**exponent

    def _is_out_of_bounds(self, base: Number, exponent: Number) -> bool:
        """Whether a power is so large or so near to nothing that it is not to be computed; judged before any computing."""
        bits = self._log2(exponent)
        if bits > _HUGE_EXPONENT_BITS:
            return True
        if bits < -MAX_VALUE_BITS:
            return True
        size = abs(self.mp.log(abs(base), 2)) if base != 1 else 0
        return bool(size * abs(exponent) > 2 * MAX_VALUE_BITS)

    @staticmethod
    def _odd_root(exponent: Node) -> tuple[int, int] | None:
        """An exponent that is a fraction with an odd denominator takes real roots of negative numbers."""
        fraction = exact(exponent)
        if fraction is None or fraction.denominator % 2 == 0 or abs(fraction.numerator) > 1_000:
            return None
        return fraction.numerator, fraction.denominator

    def _root(self, node: Node, values: list[Number]) -> Number:
        index, radicand = values
        if not isinstance(radicand, self.mp.mpc) and radicand < 0 and index in _ODD_ROOTS:
            return -((-radicand) ** (1 / index))
        if self._is_out_of_bounds(radicand, 1 / index):
            return self.unknown(node)
        if index == 2:
            return self.mp.sqrt(radicand)
        return radicand ** (1 / index)

    def _factorial(self, node: Node, values: list[Number]) -> Number:
        """Of whole numbers alone: between them mpmath builds tables for each precision, which takes up to a second."""
        count = self._whole(values[0])
        if count < 0:
            raise Undefined("the factorial of a negative number")
        if count > MAX_VALUE_BITS:
            return self.unknown(node)
        return self.mp.factorial(count) if node.op == "fact" else self.mp.mpf(_double_factorial(count))

    def _binomial(self, node: Node, values: list[Number]) -> Number:
        top, bottom = map(self._whole, values)
        if top < 0 or bottom < 0:
            raise Undefined("a binomial coefficient of a negative number")
        return self.unknown(node) if max(top, bottom) > MAX_VALUE_BITS else self.mp.mpf(comb(top, bottom))

    def _whole(self, value: Number) -> int:
        if isinstance(value, self.mp.mpc) or not self.mp.isint(value):
            raise Undefined("not a whole number")
        return int(value) if abs(value) <= MAX_VALUE_BITS else MAX_VALUE_BITS + 1

    def _function(self, node: Node, values: list[Number]) -> Number:
        name, argument = node.name, values[0]
        if name in ("ln", "log", "lg"):
            return self._logarithm(name, values)
        if self._log2(argument) > MAX_ARGUMENT_BITS or (name in ("sinh", "cosh") and abs(argument) > MAX_VALUE_BITS):
            return self.unknown(node) if name not in ("abs", "max", "min", "floor", "ceil") else abs(argument)
        if name in ("max", "min", "floor", "ceil", "sgn", "gcd", "lcm"):
            if any(isinstance(value, self.mp.mpc) for value in values):
                raise Undefined(f"{name} of a complex number")
            return self._stepwise(node, values)
        table: dict[str, Callable[[Number], Number]] = {
            "sin": self.mp.sin, "cos": self.mp.cos, "tan": self.mp.tan, "cot": self.mp.cot, "sec": self.mp.sec, "csc": self.mp.csc,
            "arcsin": self.mp.asin, "arccos": self.mp.acos, "arctan": self.mp.atan, "sinh": self.mp.sinh, "cosh": self.mp.cosh,
            "tanh": self.mp.tanh, "abs": abs,
        }  # fmt: skip
        rule = table.get(name)
        if rule is None:
            raise Undefined(f"no rule for {name}")
        return rule(argument)

    def _stepwise(self, node: Node, values: list[Number]) -> Number:
        name = node.name
        if name == "max":
            return max(values)
        if name == "min":
            return min(values)
        if name == "sgn":
            return self.mp.sign(values[0])
        if name in ("gcd", "lcm"):
            return self.unknown(node)
        return self.mp.floor(values[0]) if name == "floor" else self.mp.ceil(values[0])

    def _logarithm(self, name: str, values: list[Number]) -> Number:
        if values[0] == 0:
            raise Undefined("the logarithm of zero")
        natural = self.mp.log(values[0])
        if name == "ln":
            return natural
        if len(values) > 1:
            return natural / self.mp.log(values[1])
        if name == "lg" or self._log_base == "10":
            return natural / self.mp.log(10)
        return natural if self._log_base == "e" else natural / self.mp.log(1 + self._scattered("base of log"))

    def _call(self, node: Node, values: list[Number]) -> Number:
        """A function nobody knows: equal arguments give equal values."""
        if any(abs(self._log2(value)) > MAX_ARGUMENT_BITS for value in values if value != 0):
            return self.unknown(node)
        return self._scattered(f"{node.name}({', '.join(self.mp.nstr(value, 20) for value in values)})")

    def _product(self, node: Node, values: list[Number]) -> Number:
        result = values[0]
        for value in values[1:]:
            result = result * value
        return result

    def _sum(self, node: Node, values: list[Number]) -> Number:
        result = values[0]
        for value in values[1:]:
            result = result + value
        return result


_RULES: dict[str, Callable[[Evaluator, Node, list[Number]], Number]] = {
    "add": Evaluator._sum,
    "mul": Evaluator._product,
    "div": lambda self, node, values: values[0] / values[1],
    "neg": lambda self, node, values: -values[0],
    "pow": Evaluator._power,
    "root": Evaluator._root,
    "fact": Evaluator._factorial,
    "dfact": Evaluator._factorial,
    "binom": Evaluator._binomial,
    "fn": Evaluator._function,
    "call": Evaluator._call,
}
