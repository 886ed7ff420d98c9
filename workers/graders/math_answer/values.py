"""What an expression is worth: exactly where that is cheap, else to many digits, and never at any price.

No evaluation here can run away. A power, factorial or argument beyond the bounds below is not computed: it stands for an unknown
number that depends on its text alone, so that equal texts stay equal and anything else is unequal to it. Exact fractions are kept
below `MAX_EXACT_BITS`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import comb
from typing import Any

import mpmath

from workers.graders.math_answer.expression import Node, key
from workers.graders.math_answer.fractions_of import double_factorial, exact

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
        return self.mp.factorial(count) if node.op == "fact" else self.mp.mpf(double_factorial(count))

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
