r"""From tokens to an answer: lists, intervals, sets, relations, names, matrices, units; expressions go to the parser.

The order of reading: what stands behind the last arrow; items apart by commas and joining words; relations; operations on sets; brackets
around the whole; a ratio; at last one quantity with its unit.
"""

from __future__ import annotations

from workers.graders.math_answer.answer import (
    Answer,
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
from workers.graders.math_answer.combining import combined
from workers.graders.math_answer.expression import Node, symbols
from workers.graders.math_answer.heads import read_head
from workers.graders.math_answer.parser import parse_expression
from workers.graders.math_answer.quantities import read_quantity, without_lead
from workers.graders.math_answer.spans import (
    SIGNS,
    is_comma,
    is_relation,
    is_sign,
    joined_signs,
    lines_as_items,
    modulus_mark,
    split,
    wraps,
)
from workers.graders.math_answer.tokens import Token
from workers.graders.math_answer.unreadable import Unreadable

MAX_ITEMS = 60
"""A list of more items is refused: comparing two sets takes the square of that."""
_MAX_NESTING = 12

_MATRICES = frozenset(("matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array"))
_LINES = frozenset(("aligned", "align", "gathered", "gather", "split"))
"""Environments that only set several lines below each other."""
_POINT_NAMES = frozenset("ABDEFGHIJKLMNPQRSTUVWXYZ")
"""Letters that may stand before the coordinates of a point; C(5, 2) is more often a number of choices."""


def read_answer(tokens: list[Token], *, letter_units: bool = False) -> Answer:
    """The answer that `tokens` spell.

    Args:
        tokens: of one boxed answer, without its delimiters.
        letter_units: read a single letter behind a number as a unit (`5 m`) and not as a variable.

    Raises:
        Unreadable: they spell none that this package knows.
    """
    return _Reader(letter_units).whole(joined_signs(tokens))


class _Reader:
    def __init__(self, letter_units: bool) -> None:
        self._letter_units = letter_units
        self._nesting = 0

    def whole(self, tokens: list[Token]) -> Answer:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise Unreadable("nested too deeply", final=True)
        if len(tokens) > 1 and tokens[0].kind == "env" and tokens[0].text in _LINES and tokens[-1].kind == "endenv":
            tokens = lines_as_items([token for token in tokens[1:-1] if not is_sign(token, "&")])
        steps, _ = split(tokens, lambda token: is_sign(token, "Rightarrow"))
        parts, cuts = split(steps[-1], is_comma)
        if len(parts) > MAX_ITEMS:
            raise Unreadable(f"more than {MAX_ITEMS} items", final=True)
        answer = self.item(parts[0]) if len(parts) == 1 else self.listed(parts, cuts)
        self._nesting -= 1
        return answer

    def listed(self, parts: list[list[Token]], cuts: list[Token]) -> Answer:
        """Several items without brackets around them."""
        kept: list[list[Token]] = []
        for place, part in enumerate(parts):
            if part:
                kept.append(part)
            elif not (0 < place < len(parts) - 1 and not {"sep", "logic"}.isdisjoint((cuts[place - 1].kind, cuts[place].kind))):
                raise Unreadable("an empty item in a list")  # a comma before a joining word leaves one that means nothing
        items = [self.item(part) for part in kept]
        words = {cut.text for cut in cuts if cut.kind in ("sep", "logic")}
        if any(cut.kind == "logic" for cut in cuts) and any(isinstance(item, Quantity) and symbols(item.node) for item in items):
            raise Unreadable("a logical formula")
        return items[0] if len(items) == 1 else combined(items, words)

    def item(self, tokens: list[Token]) -> Answer:
        if not tokens:
            raise Unreadable("nothing is there")
        parts, signs = split(tokens, is_relation)
        if signs:
            return self.relation(parts, [SIGNS[sign.text] for sign in signs])
        return self.value(tokens)

    def relation(self, parts: list[list[Token]], signs: list[str]) -> Answer:
        if signs[0] == "approx" and not parts[0]:
            return self.item_of(parts[1:], signs[1:])
        if any(not part for part in parts):
            raise Unreadable("a relation without one of its sides")
        if signs == ["in"]:
            head = read_head(parts[0])
            if head is None:
                raise Unreadable("what is an element is no name")
            return Named(head[0], head[1], self.value(parts[1]))
        if "in" in signs:
            raise Unreadable("a chain with a membership")
        if set(signs) <= {"=", "approx"}:
            return self.equalities(parts, signs)
        return Relation(
            tuple(read_quantity(part, letter_units=self._letter_units) for part in parts),
            tuple("=" if sign == "approx" else sign for sign in signs),
        )

    def item_of(self, parts: list[list[Token]], signs: list[str]) -> Answer:
        return self.relation(parts, signs) if signs else self.value(parts[0])

    def equalities(self, parts: list[list[Token]], signs: list[str]) -> Answer:
        """`x = 5`, `5 = x`, `x = 10/2 = 5`, `x = \\sqrt{2} \\approx 1.41`; what is no name with values stays a relation."""
        exact_sides = 1
        while exact_sides < len(parts) and signs[exact_sides - 1] == "=":
            exact_sides += 1
        head = read_head(parts[0])
        if head is not None:
            usable = parts[1:exact_sides] or parts[1:]
            values = [self.value(part) for part in usable]
            return Named(head[0], head[1], values[-1], tuple(values[:-1]))
        usable = parts[:exact_sides]
        if len(usable) == 1:
            return self.value(usable[0])
        if len(usable) == 2 and (head := read_head(usable[1])) is not None:
            return Named(head[0], head[1], self.value(usable[0]))
        return Relation(tuple(read_quantity(part, letter_units=self._letter_units) for part in usable), ("=",) * (len(usable) - 1))

    def value(self, tokens: list[Token]) -> Answer:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise Unreadable("nested too deeply", final=True)
        answer = self.shape(without_lead(tokens))
        self._nesting -= 1
        return answer

    def shape(self, tokens: list[Token]) -> Answer:
        for operation in ("cup", "cap", "setminus"):
            parts, cuts = split(tokens, lambda token, name=operation: is_sign(token, name))  # type: ignore[misc]  # a default binds the name
            if cuts:
                return SetOperation(operation, tuple(self.value(part) for part in parts))
        if tokens and tokens[0].kind == "set":
            return self.number_set(tokens)
        if (mark := modulus_mark(tokens)) is not None:
            return Residue(self.value(tokens[: mark[0]]), parse_expression(tokens[mark[1] : mark[2]]))
        if len(tokens) == 1 and is_sign(tokens[0], "emptyset"):
            return NamedSet("empty")
        bracketed = self.bracketed(tokens)
        if bracketed is not None:
            return bracketed
        if tokens and tokens[0].kind == "env" and tokens[0].text in ("cases", "dcases"):
            return self.cases(tokens)
        if any(token.kind == "env" for token in tokens):
            return self.grid(tokens)
        parts, cuts = split(tokens, lambda token: is_sign(token, ":"))
        if cuts:
            return self.ratio(parts)
        return read_quantity(tokens, letter_units=self._letter_units)

    def number_set(self, tokens: list[Token]) -> Answer:
        name = tokens[0].text
        rest = tokens[1:]
        if rest and is_sign(rest[0], "-"):
            return SetOperation("setminus", (NamedSet(name), self.value(rest[1:])))
        if rest and is_sign(rest[0], "^"):
            name += "^" + "".join(token.text for token in rest[1:] if token.text not in "{}")
        elif rest:
            raise Unreadable("a set with something behind it")
        return NamedSet(name)

    def bracketed(self, tokens: list[Token]) -> Answer | None:
        """The whole in one pair of brackets; None when it is not."""
        if (
            len(tokens) > 4
            and is_sign(tokens[0], "[", "]")
            and is_sign(tokens[-1], "[", "]")
            and (tokens[0].text, tokens[-1].text) != ("[", "]")
        ):
            return self.turned_interval(tokens)
        if len(tokens) > 4 and tokens[0].kind == "run" and tokens[0].text in _POINT_NAMES and tokens[1].text == "(" and wraps(tokens[1:]):
            point = self.bracketed(tokens[1:])
            return point if isinstance(point, Listing) else None
        if len(tokens) < 2 or not wraps(tokens):
            return None
        opening, closing, inner = tokens[0].text, tokens[-1].text, tokens[1:-1]
        if opening == r"\{":
            return self.braces(inner)
        parts, cuts = split(inner, lambda token: is_sign(token, ",", ";"))
        if not cuts:
            return self.whole(inner) if opening in ("(", "{") and (opening, closing) in (("(", ")"), ("{", "}")) else None
        if opening == "{":
            return self.braces(inner)
        if opening in ("(", "[") and closing in (")", "]") and (opening == "(") != (closing == ")"):
            if len(parts) != 2:
                raise Unreadable("brackets of two kinds around more than two items")
            return Interval(parse_expression(parts[0]), parse_expression(parts[1]), opening == "[", closing == "]")
        if any(not part for part in parts):
            raise Unreadable("an empty item between brackets")
        return Listing("square" if opening == "[" else "round", tuple(self.value(part) for part in parts))

    def turned_interval(self, tokens: list[Token]) -> Answer:
        """`]0, 1[`: brackets turned outwards for open ends."""
        place = next((place for place, token in enumerate(tokens) if is_sign(token, ",", ";")), 0)
        if not 1 < place < len(tokens) - 2 or any(is_sign(token, "[", "]") for token in tokens[1:-1]):
            raise Unreadable("brackets that do not fit")
        low, high = parse_expression(tokens[1:place]), parse_expression(tokens[place + 1 : -1])
        return Interval(low, high, tokens[0].text == "[", tokens[-1].text == "]")

    def braces(self, inner: list[Token]) -> Answer:
        if not inner:
            return NamedSet("empty")
        described, bars = split(inner, lambda token: is_sign(token, "|", ":"))
        if len(bars) == 1:
            element, _ = split(described[0], lambda token: is_sign(token, "in"))
            if len(element[0]) == 1 and element[0][0].kind in ("run", "sym") and described[1]:
                return self.whole(described[1])
            raise Unreadable("a set described in a way not known here")
        parts, _ = split(inner, is_comma)
        if len(parts) > MAX_ITEMS:
            raise Unreadable(f"more than {MAX_ITEMS} items", final=True)
        return Listing("set", tuple(self.value(part) for part in parts if part))

    def ratio(self, parts: list[list[Token]]) -> Answer:
        texts = [part[0].text if len(part) == 1 and part[0].kind == "number" else "" for part in parts]
        clock = all(len(text) == 2 and text.isdigit() for text in texts[1:]) and (
            len(parts) == 3 or texts[0].startswith("0") or texts[1].startswith("0")
        )
        return Ratio(tuple(parse_expression(part) for part in parts), clock)

    def grid(self, tokens: list[Token]) -> Answer:
        """A matrix, with a factor before it and a transposition behind it if there are any."""
        start = next(place for place, token in enumerate(tokens) if token.kind == "env")
        end = next((place for place, token in enumerate(tokens) if token.kind == "endenv"), len(tokens))
        if tokens[start].text not in _MATRICES or end == len(tokens):
            raise Unreadable(f"the environment {tokens[start].text} is not known here")
        before, behind = tokens[:start], tokens[end + 1 :]
        if before and is_sign(before[-1], "(", "[") and behind and is_sign(behind[0], ")", "]"):
            before, behind = before[:-1], behind[1:]
        transposed = (
            len(behind) >= 2
            and behind[0].text == "^"
            and [token.text for token in behind[1:] if token.text not in "{}"] in (["T"], ["top"])
        )
        if behind and not transposed:
            raise Unreadable("a matrix with something behind it")
        lines, _ = split(tokens[start + 1 : end], lambda token: is_sign(token, "\\\\"))
        rows = [[parse_expression(cell) for cell in split(line, lambda token: is_sign(token, "&"))[0]] for line in lines if line]
        if not rows or any(len(row) != len(rows[0]) for row in rows):
            raise Unreadable("a matrix whose rows differ in length")
        if before:
            factor = parse_expression([*before, Token("number", "1")] if is_sign(before[-1], "-") else before)
            rows = [[Node("mul", (factor, cell)) for cell in row] for row in rows]
        return Grid(tuple(zip(*rows, strict=True)) if transposed else tuple(tuple(row) for row in rows))

    def cases(self, tokens: list[Token]) -> Answer:
        """A function in pieces: a list of pairs of value and condition, in any order."""
        if tokens[-1].kind != "endenv" or any(token.kind in ("env", "endenv") for token in tokens[1:-1]):
            raise Unreadable("cases with something around or inside")
        rows: list[Answer] = []
        for line in split(tokens[1:-1], lambda token: is_sign(token, "\\\\"))[0]:
            if not line:
                continue
            cells, cuts = split(line, lambda token: is_sign(token, "&"))
            if not cuts:
                cells, _ = split(line, lambda token: is_sign(token, ","))
            if len(cells) != 2:
                raise Unreadable("a case without one value and one condition")
            value, condition = (cell[:-1] if cell and is_sign(cell[-1], ",") else cell for cell in cells)
            worded = bool(condition) and condition[0].kind == "text"
            if worded and condition[0].text.lower() in ("otherwise", "else"):
                rows.append(Listing("round", (self.value(value), NamedSet("otherwise"))))
            else:
                bare = condition[1:] if worded and condition[0].text.lower() in ("if", "for", "when", "where") else condition
                rows.append(Listing("round", (self.value(value), self.whole(bare))))
        return Listing("bare", tuple(rows))
