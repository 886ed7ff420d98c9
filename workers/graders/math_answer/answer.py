"""The shapes an answer can have, above single expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workers.graders.math_answer.expression import Node
from workers.graders.math_answer.units import Unit


@dataclass(frozen=True, slots=True)
class Quantity:
    """One expression, with the unit behind it if there was one."""

    node: Node
    unit: Unit | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """Several answers, apart by commas or joined by words."""

    kind: Literal["bare", "set", "round", "square"]
    """Without brackets, in braces, in round brackets (a point, a vector, an open interval), in square ones (also a closed interval)."""
    items: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval that its brackets leave no doubt about: one end closed, the other open."""

    low: Node
    high: Node
    low_closed: bool
    high_closed: bool


@dataclass(frozen=True, slots=True)
class SetOperation:
    """A union, an intersection or a difference, from the left."""

    operation: Literal["cup", "cap", "setminus"]
    parts: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class NamedSet:
    """The reals, the integers and so on; `empty` for the empty set."""

    name: str


@dataclass(frozen=True, slots=True)
class Relation:
    """Sides joined by signs of relation: one equation, an inequality, a chain."""

    sides: tuple[Quantity, ...]
    signs: tuple[str, ...]
    """=, <, >, le, ge, ne."""

    @property
    def is_equation(self) -> bool:
        return all(sign == "=" for sign in self.signs)


@dataclass(frozen=True, slots=True)
class Conditions:
    """Inequalities that hold together (`and`), one of them at least (`or`), or apart by a bare comma (`comma`)."""

    joined: Literal["and", "or", "comma"]
    parts: tuple[Relation, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """A value with the name it was given: `x = 5`, `f(x) = x^2 + 1`, `(x, y) = (1, 2)`, `x = 1, y = 2`."""

    names: tuple[str, ...]
    """Empty for a label in words."""
    arguments: tuple[str, ...] | None
    """Names of a function's arguments; None when the name is no function."""
    value: Answer
    also: tuple[Answer, ...] = ()
    """Other values of the same chain, `x = 10/2 = 5`: they must agree with `value`."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A matrix or a column or row vector."""

    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class Residue:
    """A value up to multiples of a modulus: `3 (mod 7)`."""

    value: Answer
    modulus: Node


@dataclass(frozen=True, slots=True)
class Ratio:
    """`3:4`, or a time of day."""

    parts: tuple[Node, ...]
    clock: bool
    """Written like a time: two digits behind the first colon, and more than a ratio needs."""


Answer = Quantity | Listing | Interval | SetOperation | NamedSet | Relation | Conditions | Named | Grid | Ratio | Residue
