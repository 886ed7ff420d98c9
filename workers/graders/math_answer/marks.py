"""Signs and names that have more than one honest reading: percent, degrees, a bare logarithm, a stated base, the imaginary unit."""

from __future__ import annotations

from fractions import Fraction

from workers.graders.math_answer.expression import Node, num, replaced, symbols, walk

TRIGONOMETRIC = frozenset(("sin", "cos", "tan", "cot", "sec", "csc"))


def mark_readings(gold: Node, answer: Node) -> list[tuple[Node, Node]]:
    """Both sides with percent and degree signs worked in; a sign on one side only may also be a mere unit."""
    signs = [{part.op for part in walk(side)} & {"percent", "degree"} for side in (gold, answer)]
    hundredth = Fraction(1, 100)
    percents = [(hundredth, hundredth)]
    if "percent" in signs[0] ^ signs[1]:
        percents.append((Fraction(1), Fraction(1)))
    degrees = [False, True] if "degree" in signs[0] ^ signs[1] else [False]
    if not signs[0] and not signs[1]:
        return [(gold, answer)]
    return [
        (without_marks(gold, gold_percent, radians), without_marks(answer, answer_percent, radians))
        for gold_percent, answer_percent in percents
        for radians in degrees
    ]


def without_marks(node: Node, percent: Fraction, radians: bool) -> Node:
    """The tree without percent and degree signs; inside a trigonometric function a degree is always an angle."""
    inside = node.op == "fn" and node.name in TRIGONOMETRIC
    args = tuple(without_marks(arg, percent, radians or inside) for arg in node.args)
    if node.op == "percent":
        return args[0] if percent == 1 else Node("mul", (args[0], num(percent)))
    if node.op == "degree":
        return Node("mul", (args[0], Node("div", (Node("const", name="pi"), num(180))))) if radians else args[0]
    return Node(node.op, args, node.name, node.number, node.decimals, node.significant) if args else node


def log_bases(gold: Node, answer: Node) -> tuple[str | None, ...]:
    """A logarithm without a base on both sides has some base, the same; on one side only it may be the natural or the decimal one."""
    return (None, "e", "10") if _has_bare_log(gold) != _has_bare_log(answer) else (None,)


def same_digits(gold: Node, answer: Node) -> bool | None:
    """Numbers written in a stated base: the same digits will do where only one side states it."""
    if gold.op == "based" and answer.op == "based":
        return gold.number == answer.number and gold.name == answer.name
    for marked, other in ((gold, answer), (answer, gold)):
        if marked.op == "based" and other.op == "num":
            return other.number in (marked.number, marked.args[0].number)
    return None


def imaginary_as_in(gold: Node, answer: Node) -> Node:
    """The answer with `I` or `j` for the imaginary unit, as programs write it, where the reference has that unit and no such variable."""
    others = symbols(answer) - symbols(gold)
    if others.isdisjoint(("I", "j")) or not any(part.op == "const" and part.name == "i" for part in walk(gold)):
        return answer
    return replaced(answer, {name: Node("const", name="i") for name in others & {"I", "j"}})


def _has_bare_log(node: Node) -> bool:
    return any(part.op == "fn" and part.name == "log" and len(part.args) == 1 for part in walk(node))
