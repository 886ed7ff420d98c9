"""The set of real numbers that an answer describes, where its ends are numbers."""

from __future__ import annotations

from dataclasses import dataclass

from workers.graders.math_answer.answer import Answer, Conditions, Interval, Listing, Named, NamedSet, Quantity, Relation, SetOperation
from workers.graders.math_answer.equality import number
from workers.graders.math_answer.expression import Node, symbols
from workers.graders.math_answer.real_sets import Piece, RealSet, complement, intersected, united


@dataclass(frozen=True, slots=True)
class DescribedSet:
    """A set of reals."""

    readings: tuple[RealSet, ...]
    """More than one where a bare comma leaves open whether conditions hold together."""
    variable: str = ""
    """The variable of an inequality."""


_INFINITY = number(Node("const", name="inf"))
_REALS: RealSet = (Piece(-_INFINITY, False, _INFINITY, False),)
_NAMED: dict[str, RealSet] = {
    "R": _REALS,
    "empty": (),
    "R^+": (Piece(number(Node("num")), False, _INFINITY, False),),
    "R^-": (Piece(-_INFINITY, False, number(Node("num")), False),),
}


def set_of(answer: Answer) -> DescribedSet | None:
    """The set that `answer` describes, or None when it describes none or its ends are no numbers."""
    if isinstance(answer, Named):
        return set_of(answer.value)
    if isinstance(answer, NamedSet):
        named = _NAMED.get(answer.name)
        return None if named is None else DescribedSet((named,))
    if isinstance(answer, Interval):
        return _between(answer.low, answer.low_closed, answer.high, answer.high_closed)
    if isinstance(answer, Listing):
        return _of_listing(answer)
    if isinstance(answer, SetOperation):
        return _of_operation(answer)
    if isinstance(answer, Relation):
        return _of_relation(answer)
    return _of_conditions(answer) if isinstance(answer, Conditions) else None


def _between(low: Node, low_closed: bool, high: Node, high_closed: bool) -> DescribedSet | None:
    lowest, highest = number(low), number(high)
    if lowest is None or highest is None:
        return None
    return DescribedSet((united([Piece(lowest, low_closed and lowest != -_INFINITY, highest, high_closed and highest != _INFINITY)]),))


def _of_listing(listing: Listing) -> DescribedSet | None:
    nodes = [item.node for item in listing.items if isinstance(item, Quantity)]
    if len(nodes) != len(listing.items):
        return None
    if listing.kind == "set":
        points = [number(node) for node in nodes]
        return None if None in points else DescribedSet((united(Piece(point, True, point, True) for point in points),))
    if listing.kind in ("round", "square") and len(nodes) == 2:
        return _between(nodes[0], listing.kind == "square", nodes[1], listing.kind == "square")
    return None


def _of_operation(operation: SetOperation) -> DescribedSet | None:
    parts = [set_of(part) for part in operation.parts]
    result: RealSet | None = None
    for part in parts:
        if part is None or len(part.readings) != 1:
            return None
        other = part.readings[0]
        if result is None:
            result = other
        elif operation.operation == "cup":
            result = united([*result, *other])
        else:
            result = intersected(result, other if operation.operation == "cap" else complement(other, _INFINITY))
    return None if result is None else DescribedSet((result,))


def _of_relation(relation: Relation) -> DescribedSet | None:
    """A chain with one bare variable in it and numbers for the rest: `0 < x <= 5`, `x != 0`, `3 < x`."""
    places = [place for place, side in enumerate(relation.sides) if side.node.op == "sym"]
    if len(places) != 1 or any(symbols(side.node) for place, side in enumerate(relation.sides) if place != places[0]):
        return None
    place = places[0]
    if len(relation.sides) > 3 or (len(relation.sides) == 3 and place != 1):
        return None
    result = _REALS
    for at, sign in enumerate(relation.signs):
        bound = number(relation.sides[at if at < place else at + 1].node)
        if bound is None:
            return None
        half = _half_line(sign if at >= place else _TURNED[sign], bound)
        result = intersected(result, half)
    return DescribedSet((result,), relation.sides[place].node.name)


_TURNED = {"<": ">", ">": "<", "le": "ge", "ge": "le", "=": "=", "ne": "ne"}


def _half_line(sign: str, bound: object) -> RealSet:
    """The numbers that stand in relation `sign` to `bound`."""
    if sign in ("<", "le"):
        return united([Piece(-_INFINITY, False, bound, sign == "le" and bound != _INFINITY)])
    if sign in (">", "ge"):
        return united([Piece(bound, sign == "ge" and bound != -_INFINITY, _INFINITY, False)])
    point = (Piece(bound, True, bound, True),)
    return point if sign == "=" else complement(point, _INFINITY)


def _of_conditions(conditions: Conditions) -> DescribedSet | None:
    described = [_of_relation(part) for part in conditions.parts]
    sets = [part.readings[0] for part in described if part is not None]
    names = {part.variable for part in described if part is not None}
    if len(sets) != len(described) or len(names) != 1:
        return None
    together = _REALS
    for one in sets:
        together = intersected(together, one)
    either = united(piece for one in sets for piece in one)
    if conditions.joined == "or":
        readings: tuple[RealSet, ...] = (either,)
    else:
        readings = (together,) if conditions.joined == "and" or together else (either,)
    return DescribedSet(readings, names.pop())
