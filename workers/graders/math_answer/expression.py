"""The tree of one mathematical expression.

A node is inert: building one computes nothing, so a power tower or a giant factorial is as cheap as any other expression.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Node:
    """One operation over its arguments."""

    op: str
    """num, sym, const (pi, e, i, inf), add, mul, div, neg, pow, root (index, radicand), fn, call, fact, dfact, binom, pm, mp,
    percent, degree, based."""
    args: tuple[Node, ...] = ()
    name: str = ""
    """Of sym, const, fn and call."""
    number: Fraction = Fraction(0)
    """Value of num and based."""
    decimals: int = -1
    """Digits behind the point that a num was written with; -1 for one without a point, which is exact."""
    significant: int = 0
    """Significant digits of a num written with a point."""


def num(value: int | Fraction) -> Node:
    """An exact number."""
    return Node("num", number=Fraction(value))


def neg(node: Node) -> Node:
    """The negative; a literal takes the sign in."""
    if node.op == "num":
        return Node("num", number=-node.number, decimals=node.decimals, significant=node.significant)
    return Node("neg", (node,))


def walk(node: Node) -> Iterator[Node]:
    """All nodes, parents first."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(top.args)


def symbols(node: Node) -> frozenset[str]:
    """Names of the variables."""
    return frozenset(part.name for part in walk(node) if part.op == "sym")


def renamed(node: Node, names: dict[str, str]) -> Node:
    """The tree with variables renamed at once, as between f(x) and f(t)."""
    return replaced(node, {old: Node("sym", name=new) for old, new in names.items()})


def replaced(node: Node, by: dict[str, Node]) -> Node:
    """The tree with variables replaced, all at once."""
    if node.op == "sym":
        return by.get(node.name, node)
    if not node.args:
        return node
    return Node(node.op, tuple(replaced(arg, by) for arg in node.args), node.name, node.number, node.decimals, node.significant)


def with_signs(node: Node, plus: bool) -> Node:
    """The tree with every plus-minus read as plus (and minus-plus as minus), or the other way round."""
    if node.op in ("pm", "mp"):
        inner = with_signs(node.args[0], plus)
        return inner if (node.op == "pm") == plus else neg(inner)
    if not node.args:
        return node
    return Node(node.op, tuple(with_signs(arg, plus) for arg in node.args), node.name, node.number, node.decimals, node.significant)


def sign_choices(node: Node, limit: int = 4) -> list[Node]:
    """The tree once for each free choice of each plus-minus sign; at most 2 ** limit trees."""
    signs = [part for part in walk(node) if part.op in ("pm", "mp")]
    if len(signs) > limit or any(part.op == "mp" for part in signs):
        return [with_signs(node, True), with_signs(node, False)]
    trees = [node]
    for _ in signs:
        trees = [tree for before in trees for tree in _first_sign(before)]
    return trees


def _first_sign(node: Node) -> tuple[Node, Node]:
    """The tree with its first plus-minus read both ways."""
    if node.op == "pm":
        return node.args[0], neg(node.args[0])
    for place, arg in enumerate(node.args):
        if any(part.op == "pm" for part in walk(arg)):
            both = _first_sign(arg)
            plus, minus = (
                Node(
                    node.op, (*node.args[:place], choice, *node.args[place + 1 :]), node.name, node.number, node.decimals, node.significant
                )
                for choice in both
            )
            return plus, minus
    return node, node


def key(node: Node) -> str:
    """A text that two trees share exactly when they differ in nothing but the order of terms and factors and the grouping of sums."""
    if node.op == "num":
        return _number_key(node.number)
    if node.op in ("sym", "const"):
        return f"{node.op}:{node.name}"
    if node.op in ("add", "mul"):
        parts = sorted(key(part) for part in _flat(node, node.op))
        return f"{node.op}({' '.join(parts)})"
    if node.op == "neg" and node.args[0].op == "num":
        return _number_key(-node.args[0].number)
    return f"{node.op}:{node.name}({' '.join(key(arg) for arg in node.args)})"


def _number_key(value: Fraction) -> str:
    return f"{value.numerator:x}/{value.denominator:x}"


def _flat(node: Node, op: str) -> Iterator[Node]:
    for arg in node.args:
        if arg.op == op:
            yield from _flat(arg, op)
        else:
            yield arg
