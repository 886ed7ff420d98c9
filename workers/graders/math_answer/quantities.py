"""A number or formula with the unit, currency or label around it."""

from __future__ import annotations

from workers.graders.math_answer.answer import Quantity
from workers.graders.math_answer.expression import Node, num
from workers.graders.math_answer.parser import parse_expression
from workers.graders.math_answer.spans import is_sign
from workers.graders.math_answer.tokens import Token
from workers.graders.math_answer.units import Unit, is_known_unit, read_unit
from workers.graders.math_answer.unreadable import Unreadable

_CURRENCIES = {"dollars": "dollar", "euro": "euro", "pounds": "pounds sterling", "yen": "yen"}
_LEADS = frozenset((
    "answer", "the answer is", "answer:", "the answer is:", "answer is", "therefore", "so", "thus", "hence", "approximately",
    "about", "approx", "approx.", "roughly", "exactly", "is", "the solution is", "the solutions are", "solution:", "solutions:",
))  # fmt: skip


def read_quantity(tokens: list[Token], *, letter_units: bool) -> Quantity:
    """The expression and the unit that `tokens` spell; `letter_units` as in `reading.read_answer`."""
    tokens = without_lead(tokens)
    negative = len(tokens) > 1 and is_sign(tokens[0], "-") and is_sign(tokens[1], *_CURRENCIES)
    if len(tokens) > negative and tokens[negative].kind == "command" and tokens[negative].text in _CURRENCIES:
        money = read_unit(_CURRENCIES[tokens[negative].text])
        amount = read_quantity([tokens[0], *tokens[2:]] if negative else tokens[1:], letter_units=letter_units)
        return Quantity(amount.node, money if amount.unit is None or amount.unit.dimensions in (None, ()) else amount.unit)
    cut, unit = _unit_behind(tokens, letter_units)
    node = parse_expression(tokens[:cut])
    if unit is None:
        return Quantity(node)
    if unit.scale != 1:
        node = Node("mul", (node, num(unit.scale)))
    if unit.dimensions in ((("percent", 1),), (("degree", 1),)):
        return Quantity(node if node.op == "degree" else Node(str(unit.dimensions[0][0]), (node,)))
    return Quantity(node, unit if unit.dimensions else None)


def without_lead(tokens: list[Token]) -> list[Token]:
    """The tokens behind an opening phrase that says nothing, such as `the answer is`."""
    while len(tokens) > 1 and ((tokens[0].kind == "text" and tokens[0].text.lower().strip(" :") in _LEADS) or is_sign(tokens[0], "approx")):
        tokens = tokens[1:]
    return tokens


def _unit_behind(tokens: list[Token], letter_units: bool) -> tuple[int, Unit | None]:
    """Where the unit behind a number begins, and the unit; the end and None when there is none."""
    for place in range(1, len(tokens)):
        if not _begins_unit(tokens, place, letter_units):
            continue
        cut = place
        tail = list(tokens[place:])
        if tail[0].text in ("C", "F") and place >= 2 and tokens[place - 1].text in ("circ", "}"):
            while cut > 0 and tokens[cut].text != "^":
                cut -= 1
            return cut, read_unit("celsius" if tail[0].text == "C" else "fahrenheit")
        if place >= 1 and (
            is_sign(tokens[place - 1], "*", "cdot", "times") or (tokens[place - 1].kind == "op" and tokens[place - 1].text in "({")
        ):
            cut = place - 1
        unit = read_unit(_phrase(tail))
        if unit is None:
            raise Unreadable("words behind a number that are no unit", final=True)
        return cut, unit
    return len(tokens), None


def _begins_unit(tokens: list[Token], place: int, letter_units: bool) -> bool:
    token, before = tokens[place], tokens[place - 1]
    if token.kind == "text":
        return True
    if token.kind == "command" and token.text == "frac":
        return place + 2 < len(tokens) and (tokens[place + 2].kind == "text" or tokens[place + 2].upright)
    if token.kind != "run" or before.kind == "fn" or (before.kind == "op" and before.text in "^_+-=("):
        return False
    after_number = before.kind == "number" or before.text in ("}", ")", "circ")
    if (
        token.text in ("C", "F")
        and before.text in ("circ", "}")
        and any(earlier.text == "circ" for earlier in tokens[max(0, place - 3) : place])
    ):
        return True
    if len(token.text) == 1:
        last = place == len(tokens) - 1 or tokens[place + 1].text in ("/", "^")
        return (letter_units or (token.upright and token.text not in "ei")) and after_number and last and is_known_unit(token.text)
    return len(token.text) >= 4 or (after_number and (is_known_unit(token.text) or (len(token.text) == 3 and token.spaced)))


def _phrase(tokens: list[Token]) -> str:
    """The tokens of a unit as plain text."""
    parts: list[str] = []
    over = False
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.kind == "command" and token.text == "frac":
            over = True
        elif over and token.text == "}" and "/" not in parts:
            parts.append("/")
        elif is_sign(token, "{", "}", "(", ")"):
            parts.append(" ")
        elif token.kind == "command" and token.text in ("cdot", "times"):
            parts.append("*")
        elif token.kind == "number" and before is not None and before.kind == "run" and not token.spaced and len(token.text) == 1:
            parts.append(f"^{token.text}")  # cm2
        elif token.kind == "number" and (before is None or before.text not in ("^", "-", "{")):
            parts.append("?")  # another number, as in 5 feet 3 inches
        elif token.kind in ("text", "run", "sym", "number") or is_sign(token, "^", "/", "*", "-", "."):
            parts.append(f" {token.text} " if token.kind in ("text", "run", "sym") else token.text)
        else:
            parts.append("?")
    return " ".join("".join(parts).split()).replace(" ^", "^").replace("^ ", "^")
