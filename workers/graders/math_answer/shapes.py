"""Comparing answers shape by shape. Three answers: yes, no, and None when a value could not be computed."""

from __future__ import annotations

from collections.abc import Sequence

from workers.graders.math_answer.answer import (
    Answer,
    Conditions,
    Grid,
    Interval,
    Listing,
    Named,
    NamedSet,
    Quantity,
    Ratio,
    Relation,
    Residue,
    SetOperation,
)
from workers.graders.math_answer.equality import STRICT, Tolerance, proportional, same_value
from workers.graders.math_answer.expression import Node, neg, num, renamed, sign_choices, symbols, walk
from workers.graders.math_answer.fractions_of import exact
from workers.graders.math_answer.real_sets import same_set
from workers.graders.math_answer.sets_of_answers import set_of

_END_TOLERANCE = 1e-14
"""Of the ends of intervals, relative: they are computed to 50 digits, and a long decimal may stand for an irrational end."""
_FLIPPED = {"<": ">", ">": "<", "le": "ge", "ge": "le", "=": "=", "ne": "ne"}

Verdict = bool | None


def same_answer(gold: Answer, answer: Answer, tolerance: Tolerance = STRICT) -> Verdict:
    """Whether `answer` is `gold`."""
    return _Comparison(tolerance).same(gold, answer)


def _both(*verdicts: Verdict) -> Verdict:
    if any(verdict is False for verdict in verdicts):
        return False
    return None if any(verdict is None for verdict in verdicts) else True


def _is_set_like(answer: Answer) -> bool:
    return isinstance(answer, Interval | SetOperation | NamedSet | Conditions) or (isinstance(answer, Relation) and not answer.is_equation)


class _Comparison:
    def __init__(self, tolerance: Tolerance) -> None:
        self._tolerance = tolerance

    def value(self, gold: Node, answer: Node) -> Verdict:
        return same_value(gold, answer, self._tolerance)

    def same(self, gold: Answer, answer: Answer) -> Verdict:
        if isinstance(answer, Named) and answer.also:
            agreed = _both(*(same_answer(answer.value, other) for other in answer.also))
            return _both(agreed, self.same(gold, Named(answer.names, answer.arguments, answer.value)))
        if isinstance(gold, Named) and isinstance(answer, Named):
            return self.named(gold, answer)
        if isinstance(gold, Named):
            return self.named_against_bare(gold, answer)
        if isinstance(answer, Named):
            return self.named_against_bare(answer, gold, named_is_answer=True)
        if isinstance(gold, Residue) or isinstance(answer, Residue):
            return self.residues(gold, answer)
        if _is_set_like(gold) or _is_set_like(answer):
            return self.sets(gold, answer)
        if isinstance(gold, Relation) or isinstance(answer, Relation):
            return self.equations(gold, answer)
        if isinstance(gold, Grid) or isinstance(answer, Grid):
            return self.grids(gold, answer)
        if isinstance(gold, Ratio) or isinstance(answer, Ratio):
            return self.ratios(gold, answer)
        if isinstance(gold, Quantity) and isinstance(answer, Quantity) and not _has_choice(gold) and not _has_choice(answer):
            return self.quantities(gold, answer)
        return self.lists(gold, answer)

    # names

    def named(self, gold: Named, answer: Named) -> Verdict:
        if gold.arguments and answer.arguments and len(gold.arguments) == len(answer.arguments):
            answer = Named(answer.names, gold.arguments, _renamed(answer.value, dict(zip(answer.arguments, gold.arguments, strict=True))))
        if gold.names != answer.names and gold.names and answer.names:
            if len(gold.names) == 1 and _numbered(gold.names[0], answer.names) and isinstance(answer.value, Listing):
                return self.same(gold.value, Listing("bare", answer.value.items))
            if len(gold.names) > 1 or len(answer.names) > 1:
                return self.in_order_of_names(gold, answer)
            as_equations = self.named_as_equations(gold, answer)
            if as_equations:
                return True
            if gold.arguments is None and answer.arguments is None and _is_constant(gold.value) and _is_constant(answer.value):
                return False  # x = 5 is not y = 5; a formula may be called f(x), y or nothing
        same = self.same(gold.value, answer.value)
        return same if same is not False else self.named_as_equations(gold, answer) or False

    def in_order_of_names(self, gold: Named, answer: Named) -> Verdict:
        """`x = 1, y = 2` against `(y, x) = (2, 1)`."""
        if sorted(gold.names) != sorted(answer.names) or not isinstance(answer.value, Listing):
            return False
        order = [answer.names.index(name) for name in gold.names]

        def arranged(value: Answer) -> Answer:
            if isinstance(value, Listing) and value.kind == "round" and len(value.items) == len(order):
                return Listing("round", tuple(value.items[place] for place in order))
            return value

        value = answer.value
        if value.kind == "bare":
            return self.same(gold.value, Listing("bare", tuple(arranged(item) for item in value.items)))
        return self.same(gold.value, arranged(value))

    def named_as_equations(self, gold: Named, answer: Named) -> Verdict:
        """`y = 2x + 1` against `x = (y - 1)/2`: two ways to write one equation."""
        first, second = _as_equation(gold), _as_equation(answer)
        return None if first is None or second is None else self.equation_pair(first, second)

    def named_against_bare(self, named: Named, bare: Answer, *, named_is_answer: bool = False) -> Verdict:
        if isinstance(bare, Relation) and bare.is_equation and (equation := _as_equation(named)) is not None:
            return self.equation_pair(bare, equation) if named_is_answer else self.equation_pair(equation, bare)
        return self.same(bare, named.value) if named_is_answer else self.same(named.value, bare)

    # sets, inequalities

    def sets(self, gold: Answer, answer: Answer) -> Verdict:
        one, other = set_of(gold), set_of(answer)
        if one is not None and other is not None:
            if one.variable and other.variable and one.variable != other.variable:
                return False
            return any(same_set(first, second, _END_TOLERANCE) for first in one.readings for second in other.readings)
        if isinstance(gold, NamedSet) and isinstance(answer, NamedSet):
            return gold == answer
        ends = _ends(gold), _ends(answer)
        if ends[0] is not None and ends[1] is not None:
            (low, high, *closed), (other_low, other_high, *other_closed) = ends[0], ends[1]
            return closed == other_closed and _both(self.value(low, other_low), self.value(high, other_high))
        if isinstance(gold, SetOperation) and isinstance(answer, SetOperation) and gold.operation == answer.operation:
            return self.unordered(gold.parts, answer.parts) if gold.operation != "setminus" else self.ordered(gold.parts, answer.parts)
        if isinstance(gold, Relation) and isinstance(answer, Relation):
            return self.inequality_pair(gold, answer)
        if isinstance(gold, Conditions) and isinstance(answer, Conditions) and {gold.joined, answer.joined} != {"and", "or"}:
            return self.unordered(gold.parts, answer.parts)
        return False

    def inequality_pair(self, gold: Relation, answer: Relation) -> Verdict:
        """Two inequalities with the same solutions: one is a multiple of the other, turned round when the factor is negative."""
        if len(gold.sides) != 2 or len(answer.sides) != 2:
            straight = len(gold.sides) == len(answer.sides) and gold.signs == answer.signs
            return straight and _both(*(self.quantities(one, other) for one, other in zip(gold.sides, answer.sides, strict=True)))
        factor = proportional(_difference(gold), _difference(answer))
        if factor is None or factor is False:
            return factor
        sign = gold.signs[0] if factor == 1 else _FLIPPED[gold.signs[0]]
        return sign == answer.signs[0]

    # equations

    def equations(self, gold: Answer, answer: Answer) -> Verdict:
        if isinstance(gold, Relation) and isinstance(answer, Relation):
            return self.equation_pair(gold, answer)
        if isinstance(gold, Relation):
            values = [side for side in gold.sides if not symbols(side.node)]
            return self.same(values[-1], answer) if len(values) == len(gold.sides) else False
        if isinstance(answer, Relation):
            return self.value_of_chain(gold, answer)
        return False

    def value_of_chain(self, gold: Answer, answer: Relation) -> Verdict:
        """`2 + 3 = 5` or `a + b = 5` against 5; not `x + 1 = 5`, whose solution is another number."""
        constant = [side for side in answer.sides if not symbols(side.node)]
        if len(constant) == len(answer.sides):
            return _both(*(same_answer(answer.sides[-1], side) for side in answer.sides[:-1]), self.same(gold, answer.sides[-1]))
        if symbols(answer.sides[-1].node):
            same = self.same(gold, answer.sides[-1]) if not constant else False
            return same and _both(*(same_answer(answer.sides[-1], side) for side in answer.sides[:-1]))
        if _is_equation_to_solve(answer.sides[0].node):
            return False
        return self.same(gold, answer.sides[-1])

    def equation_pair(self, gold: Relation, answer: Relation) -> Verdict:
        if len(gold.sides) != 2 or len(answer.sides) != 2:
            straight = len(gold.sides) == len(answer.sides)
            return straight and _both(*(self.quantities(one, other) for one, other in zip(gold.sides, answer.sides, strict=True)))
        factor = proportional(_difference(gold), _difference(answer))
        return factor if factor is None or factor is False else True

    # lists, points, matrices, ratios

    def lists(self, gold: Answer, answer: Answer) -> Verdict:
        verdicts = [self.list_pair(one, other) for one, other in zip(_spread(gold), _spread(answer), strict=True)]
        return True if any(verdicts) else None if None in verdicts else False

    def list_pair(self, gold: Answer, answer: Answer) -> Verdict:
        if isinstance(gold, Quantity) and isinstance(answer, Quantity):
            return self.quantities(gold, answer)
        if isinstance(gold, Listing) and isinstance(answer, Listing):
            return self.listings(gold, answer)
        if isinstance(gold, Quantity) and isinstance(answer, Listing) and answer.kind == "bare":
            return _both(*(self.same(gold, item) for item in answer.items))  # 1/2 or 0.5: said twice, not hedged
        for listing, single in ((gold, answer), (answer, gold)):
            if isinstance(listing, Listing) and len(listing.items) == 1 and listing.kind in ("set", "bare"):
                return self.same(listing.items[0], single) if listing is gold else self.same(single, listing.items[0])
        return False

    def listings(self, gold: Listing, answer: Listing) -> Verdict:
        kinds = {gold.kind, answer.kind}
        if kinds == {"set"}:
            return self.as_sets(gold.items, answer.items)
        if kinds == {"set", "bare"}:
            return self.as_sets(gold.items, answer.items)
        if kinds == {"bare"}:
            return self.unordered(gold.items, answer.items)
        if "set" in kinds or (kinds == {"round", "square"} and len(gold.items) == 2):
            return False
        return self.ordered(gold.items, answer.items)

    def ordered(self, gold: Sequence[Answer], answer: Sequence[Answer]) -> Verdict:
        return len(gold) == len(answer) and _both(*(self.same(one, other) for one, other in zip(gold, answer, strict=True)))

    def unordered(self, gold: Sequence[Answer], answer: Sequence[Answer]) -> Verdict:
        """Each of one with one of the other, in any order; a value that stands twice must stand twice."""
        if len(gold) != len(answer):
            return False
        gold, left = _without_matches(gold, answer)
        undecided = False
        for item in gold:
            verdicts = []
            for other in left:
                verdicts.append(self.same(item, other))
                if verdicts[-1]:
                    left.pop(len(verdicts) - 1)
                    break
            else:
                if None not in verdicts:
                    return False
                undecided = True
        return None if undecided else True

    def as_sets(self, gold: Sequence[Answer], answer: Sequence[Answer]) -> Verdict:
        """Each of one is somewhere in the other, and the other way round."""
        table = [[self.same(item, other) for other in answer] for item in gold]
        lines = [*table, *([row[place] for row in table] for place in range(len(answer)))]
        return _both(*(True if True in line else None if None in line else False for line in lines))

    def grids(self, gold: Answer, answer: Answer) -> Verdict:
        if isinstance(gold, Grid) and isinstance(answer, Grid):
            if len(gold.rows) != len(answer.rows) or len(gold.rows[0]) != len(answer.rows[0]):
                return False
            cells = [(one, other) for row, line in zip(gold.rows, answer.rows, strict=True) for one, other in zip(row, line, strict=True)]
            return _both(*(self.value(one, other) for one, other in cells))
        for grid, other in ((gold, answer), (answer, gold)):
            if isinstance(grid, Grid) and isinstance(other, Listing) and other.kind != "set" and 1 in (len(grid.rows), len(grid.rows[0])):
                vector = tuple(Quantity(cell) for row in grid.rows for cell in row)
                return self.ordered(vector, other.items) if grid is gold else self.ordered(other.items, vector)
        return False

    def ratios(self, gold: Answer, answer: Answer) -> Verdict:
        if isinstance(gold, Ratio) and isinstance(answer, Ratio):
            if len(gold.parts) != len(answer.parts):
                return False
            straight = _both(*(self.value(one, other) for one, other in zip(gold.parts, answer.parts, strict=True)))
            if straight or gold.clock:
                return straight
            return _both(*(
                self.value(Node("mul", (gold.parts[0], other)), Node("mul", (answer.parts[0], one)))
                for one, other in zip(gold.parts[1:], answer.parts[1:], strict=True)
            ))  # fmt: skip
        for ratio, other in ((gold, answer), (answer, gold)):
            if isinstance(ratio, Ratio) and isinstance(other, Quantity) and len(ratio.parts) == 2 and not ratio.clock:
                quotient = Node("div", ratio.parts)
                return self.value(quotient, other.node) if ratio is gold else self.value(other.node, quotient)
        return False

    def quantities(self, gold: Quantity, answer: Quantity) -> Verdict:
        units = gold.unit, answer.unit
        if units[0] is not None and units[1] is not None and units[0].dimensions is not None and units[1].dimensions is not None:
            if units[0].dimensions != units[1].dimensions:
                return False
            return self.value(Node("mul", (num(units[0].factor), gold.node)), Node("mul", (num(units[1].factor), answer.node)))
        same = self.value(gold.node, answer.node)
        if same is False and (other := _with_parameter_of(gold.node, answer.node)) is not None:
            return self.value(gold.node, other)
        return same

    def residues(self, gold: Answer, answer: Answer) -> Verdict:
        """Equal moduli, and values that differ by a multiple; a value alone stands for its class."""
        if isinstance(gold, Residue) and isinstance(answer, Residue):
            values = gold.value, answer.value
            same = self.value(gold.modulus, answer.modulus)
            if same and isinstance(values[0], Quantity) and isinstance(values[1], Quantity):
                modulus, *residues = (exact(node) for node in (gold.modulus, values[0].node, values[1].node))
                if modulus and None not in residues:
                    return bool((residues[0] - residues[1]) % modulus == 0)  # type: ignore[operator]  # neither is None
            return _both(same, self.same(*values))
        return self.same(gold.value if isinstance(gold, Residue) else gold, answer.value if isinstance(answer, Residue) else answer)


_PARAMETERS = frozenset(("k", "m", "n"))


def _with_parameter_of(gold: Node, answer: Node) -> Node | None:
    """The answer with its whole-number parameter called as in the reference, as in `k pi` and `n pi`; None when there are no such names."""
    names = symbols(gold), symbols(answer)
    wanted, found = names[0] - names[1], names[1] - names[0]
    if len(wanted) != 1 or len(found) != 1 or not wanted | found <= _PARAMETERS:
        return None
    if not all(any(part.name == "pi" or part.op == "degree" for part in walk(side)) for side in (gold, answer)):
        return None
    return renamed(answer, dict(zip(found, wanted, strict=True)))


def _numbered(name: str, names: Sequence[str]) -> bool:
    """Whether `names` are `name` with numbers below: x_1, x_2."""
    return len(names) > 1 and all(one.startswith(f"{name}_") and one.removeprefix(f"{name}_").isdigit() for one in names)


def _has_choice(quantity: Quantity) -> bool:
    return any(part.op in ("pm", "mp") for part in walk(quantity.node))


def _spread(answer: Answer) -> tuple[Answer, Answer]:
    """The answer with its plus-minus signs written out, once with all signs chosen together and once freely."""
    if isinstance(answer, Quantity) and _has_choice(answer):
        together = tuple(Quantity(node, answer.unit) for node in sign_choices(answer.node, limit=0))
        freely = tuple(Quantity(node, answer.unit) for node in sign_choices(answer.node))
        return Listing("bare", together), Listing("bare", freely)
    if isinstance(answer, Listing) and answer.kind in ("bare", "set"):
        spread = [_spread(item) for item in answer.items]
        if any(isinstance(item, Quantity) and _has_choice(item) for item in answer.items):
            first, second = (
                Listing(
                    answer.kind,
                    tuple(
                        part for item in choice for part in (item.items if isinstance(item, Listing) and item.kind == "bare" else (item,))
                    ),
                )
                for choice in zip(*spread, strict=True)
            )
            return first, second
    return answer, answer


def _without_matches(gold: Sequence[Answer], answer: Sequence[Answer]) -> tuple[list[Answer], list[Answer]]:
    """Both without what is the same in both to the letter; keeps long lists from taking the square of their length."""
    waiting: dict[Answer, int] = {}
    for item in answer:
        waiting[item] = waiting.get(item, 0) + 1
    rest: list[Answer] = []
    for item in gold:
        if waiting.get(item, 0):
            waiting[item] -= 1
        else:
            rest.append(item)
    return rest, [item for item, count in waiting.items() for _ in range(count)]


def _renamed(answer: Answer, names: dict[str, str]) -> Answer:
    return Quantity(renamed(answer.node, names), answer.unit) if isinstance(answer, Quantity) else answer


def _is_constant(answer: Answer) -> bool:
    if isinstance(answer, Quantity):
        return not symbols(answer.node)
    return all(_is_constant(item) for item in answer.items) if isinstance(answer, Listing) else False


def _as_equation(named: Named) -> Relation | None:
    if len(named.names) != 1 or named.arguments is not None or not isinstance(named.value, Quantity):
        return None
    return Relation((Quantity(Node("sym", name=named.names[0])), named.value), ("=",))


def _difference(relation: Relation) -> Node:
    return Node("add", (relation.sides[0].node, neg(relation.sides[1].node)))


def _is_equation_to_solve(left: Node) -> bool:
    """A polynomial in one variable: what stands right of its equals sign is not what the variable is."""
    return len(symbols(left)) == 1 and all(part.op in ("num", "sym", "add", "mul", "neg", "pow", "div") for part in walk(left))


def _ends(answer: Answer) -> tuple[Node, Node, bool, bool] | None:
    """The ends of an interval and whether they belong to it."""
    if isinstance(answer, Interval):
        return answer.low, answer.high, answer.low_closed, answer.high_closed
    if isinstance(answer, Listing) and answer.kind in ("round", "square") and len(answer.items) == 2:
        low, high = answer.items
        if isinstance(low, Quantity) and isinstance(high, Quantity):
            return low.node, high.node, answer.kind == "square", answer.kind == "square"
    if (
        isinstance(answer, Relation)
        and len(answer.sides) == 3
        and len(symbols(answer.sides[1].node)) == 1
        and answer.sides[1].node.op == "sym"
    ):
        if all(sign in ("<", "le") for sign in answer.signs):
            return answer.sides[0].node, answer.sides[2].node, answer.signs[0] == "le", answer.signs[1] == "le"
        if all(sign in (">", "ge") for sign in answer.signs):
            return answer.sides[2].node, answer.sides[0].node, answer.signs[1] == "ge", answer.signs[0] == "ge"
    return None
