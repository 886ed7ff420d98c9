"""Whether an answer is worked out, or still a calculation to be done."""

from __future__ import annotations

from workers.graders.math_answer.expression import Node, num, walk


def is_worked_out(gold: Node, answer: Node) -> bool:
    """Where the reference is a number, a written number; else nothing that computes what the reference does not."""
    if _is_arithmetic(gold):
        return _is_written_number(answer)
    return _functions(answer) <= _functions(gold)


def _functions(node: Node) -> frozenset[str]:
    """What an expression uses beside sums, products, powers and roots."""
    return frozenset(part.name or part.op for part in walk(node) if part.op in ("fn", "call", "fact", "dfact", "binom"))


def _is_arithmetic(node: Node) -> bool:
    """Whether a reference is made of written numbers, and the imaginary unit, alone."""
    return all(part.op not in ("sym", "fn", "call", "root", "fact", "dfact", "binom") and part.name in ("", "i") for part in walk(node))


def _is_written_number(node: Node) -> bool:
    """An integer, decimal or fraction with its sign, a power of ten behind it, percent or degree sign; or a complex number of such."""
    if node.op == "neg":
        return _is_written_number(node.args[0])
    if node.op == "add" and len(node.args) == 2:
        real, imaginary = node.args
        return (_is_real_number(real) and _is_imaginary_number(imaginary)) or (_is_imaginary_number(real) and _is_real_number(imaginary))
    return _is_real_number(node) or _is_imaginary_number(node)


def _is_real_number(node: Node) -> bool:
    if node.op in ("neg", "percent", "degree"):
        return _is_real_number(node.args[0])
    if node.op == "div":
        return all(part.op == "num" or (part.op == "neg" and part.args[0].op == "num") for part in node.args)
    if node.op == "mul" and len(node.args) == 2:
        digits, power = node.args
        return digits.op == "num" and power.op == "pow" and power.args[0] == num(10) and power.args[1].op == "num"
    return node.op in ("num", "based")


def _is_imaginary_number(node: Node) -> bool:
    if node.op == "neg":
        return _is_imaginary_number(node.args[0])
    unit = Node("const", name="i")
    return node == unit or (node.op == "mul" and len(node.args) == 2 and node.args[1] == unit and _is_real_number(node.args[0]))
