r"""From tokens to an answer: lists, intervals, sets, relations, names, matrices, units; expressions go to the parser.

The order of reading: what stands behind the last arrow; items apart by commas and joining words; relations; operations on sets;
brackets around the whole; a ratio; at last one quantity with its unit.
"""

from __future__ import annotations

from collections.abc import Callable

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
from workers.graders.math_answer.expression import Node, num, symbols
from workers.graders.math_answer.parser import parse_expression
from workers.graders.math_answer.tokens import Token
from workers.graders.math_answer.units import Unit, is_known_unit, read_unit
from workers.graders.math_answer.unreadable import Unreadable

MAX_ITEMS = 60
"""A list of more items is refused: comparing two sets takes the square of that."""
_MAX_NESTING = 12

_OPENERS = frozenset(("(", "[", "{", r"\{", "langle", "lfloor", "lceil"))
_CLOSERS = frozenset((")", "]", "}", r"\}", "rangle", "rfloor", "rceil"))
_SIGNS = {"=": "=", "<": "<", ">": ">", "le": "le", "ge": "ge", "ne": "ne", "approx": "approx", "in": "in", "sim": "approx", "equiv": "="}
_JOINED = {("<", "="): "le", (">", "="): "ge", (":", "="): "=", ("=", "="): "=", ("=", ">"): "Rightarrow"}
_MATRICES = frozenset(("matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array"))
_LINES = frozenset(("aligned", "align", "gathered", "gather", "split"))
"""Environments that only set several lines below each other."""
_POINT_NAMES = frozenset("ABDEFGHIJKLMNPQRSTUVWXYZ")
"""Letters that may stand before the coordinates of a point; C(5, 2) is more often a number of choices."""
_CURRENCIES = {"dollars": "dollar", "euro": "euro", "pounds": "pounds sterling", "yen": "yen"}
_LEADS = frozenset((
    "answer", "the answer is", "answer:", "the answer is:", "answer is", "therefore", "so", "thus", "hence", "approximately",
    "about", "approx", "approx.", "roughly", "exactly", "is", "the solution is", "the solutions are", "solution:", "solutions:",
))  # fmt: skip


def read_answer(tokens: list[Token], *, letter_units: bool = False) -> Answer:
    """The answer that `tokens` spell.

    Args:
        tokens: of one boxed answer, without its delimiters.
        letter_units: read a single letter behind a number as a unit (`5 m`) and not as a variable.

    Raises:
        Unreadable: they spell none that this package knows.
    """
    return _Reader(letter_units).whole(_joined(tokens))


def _joined(tokens: list[Token]) -> list[Token]:
    """Signs of two characters made one; `!=` only behind a blank, since `5!=120` is a factorial."""
    joined: list[Token] = []
    for token in tokens:
        before = joined[-1] if joined else None
        if token.kind == "op" and before is not None and before.kind == "op" and not token.spaced:
            pair = (before.text, token.text)
            name = "ne" if pair == ("!", "=") and before.spaced else _JOINED.get(pair)
            if name is not None:
                joined[-1] = Token("op" if name == "=" else "command", name, before.spaced)
                continue
        joined.append(token)
    return joined


def _split(tokens: list[Token], is_cut: Callable[[Token], bool]) -> tuple[list[list[Token]], list[Token]]:
    """The parts between the tokens at the outermost level that `is_cut` picks, and those tokens."""
    parts: list[list[Token]] = [[]]
    cuts: list[Token] = []
    depth = 0
    for token in tokens:
        if token.kind == "env" or (token.kind in ("op", "command") and token.text in _OPENERS):
            depth += 1
        elif token.kind == "endenv" or (token.kind in ("op", "command") and token.text in _CLOSERS):
            depth -= 1
        elif depth == 0 and is_cut(token):
            cuts.append(token)
            parts.append([])
            continue
        parts[-1].append(token)
    return parts, cuts


def _is_comma(token: Token) -> bool:
    return token.kind in ("sep", "logic") or (token.kind == "op" and token.text in (",", ";"))


def _is_relation(token: Token) -> bool:
    return token.kind in ("op", "command") and token.text in _SIGNS


def _is(token: Token, *texts: str) -> bool:
    return token.kind in ("op", "command") and token.text in texts


class _Reader:
    def __init__(self, letter_units: bool) -> None:
        self._letter_units = letter_units
        self._nesting = 0

    def whole(self, tokens: list[Token]) -> Answer:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise Unreadable("nested too deeply", final=True)
        if len(tokens) > 1 and tokens[0].kind == "env" and tokens[0].text in _LINES and tokens[-1].kind == "endenv":
            tokens = _lines_as_items([token for token in tokens[1:-1] if not _is(token, "&")])
        steps, _ = _split(tokens, lambda token: _is(token, "Rightarrow"))
        parts, cuts = _split(steps[-1], _is_comma)
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
        return items[0] if len(items) == 1 else _combined(items, words)

    def item(self, tokens: list[Token]) -> Answer:
        if not tokens:
            raise Unreadable("nothing is there")
        parts, signs = _split(tokens, _is_relation)
        if signs:
            return self.relation(parts, [_SIGNS[sign.text] for sign in signs])
        return self.value(tokens)

    def relation(self, parts: list[list[Token]], signs: list[str]) -> Answer:
        if signs[0] == "approx" and not parts[0]:
            return self.item_of(parts[1:], signs[1:])
        if any(not part for part in parts):
            raise Unreadable("a relation without one of its sides")
        if signs == ["in"]:
            head = _head(parts[0])
            if head is None:
                raise Unreadable("what is an element is no name")
            return Named(head[0], head[1], self.value(parts[1]))
        if "in" in signs:
            raise Unreadable("a chain with a membership")
        if set(signs) <= {"=", "approx"}:
            return self.equalities(parts, signs)
        return Relation(tuple(self.quantity(part) for part in parts), tuple("=" if sign == "approx" else sign for sign in signs))

    def item_of(self, parts: list[list[Token]], signs: list[str]) -> Answer:
        return self.relation(parts, signs) if signs else self.value(parts[0])

    def equalities(self, parts: list[list[Token]], signs: list[str]) -> Answer:
        """`x = 5`, `5 = x`, `x = 10/2 = 5`, `x = \\sqrt{2} \\approx 1.41`; what is no name with values stays a relation."""
        exact_sides = 1
        while exact_sides < len(parts) and signs[exact_sides - 1] == "=":
            exact_sides += 1
        head = _head(parts[0])
        if head is not None:
            usable = parts[1:exact_sides] or parts[1:]
            values = [self.value(part) for part in usable]
            return Named(head[0], head[1], values[-1], tuple(values[:-1]))
        usable = parts[:exact_sides]
        if len(usable) == 1:
            return self.value(usable[0])
        if len(usable) == 2 and (head := _head(usable[1])) is not None:
            return Named(head[0], head[1], self.value(usable[0]))
        return Relation(tuple(self.quantity(part) for part in usable), ("=",) * (len(usable) - 1))

    def value(self, tokens: list[Token]) -> Answer:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise Unreadable("nested too deeply", final=True)
        answer = self.shape(_without_lead(tokens))
        self._nesting -= 1
        return answer

    def shape(self, tokens: list[Token]) -> Answer:
        for operation in ("cup", "cap", "setminus"):
            parts, cuts = _split(tokens, lambda token, name=operation: _is(token, name))  # type: ignore[misc]  # a default binds the name
            if cuts:
                return SetOperation(operation, tuple(self.value(part) for part in parts))
        if tokens and tokens[0].kind == "set":
            return self.number_set(tokens)
        if (mark := _modulus_mark(tokens)) is not None:
            return Residue(self.value(tokens[: mark[0]]), parse_expression(tokens[mark[1] : mark[2]]))
        if len(tokens) == 1 and _is(tokens[0], "emptyset"):
            return NamedSet("empty")
        bracketed = self.bracketed(tokens)
        if bracketed is not None:
            return bracketed
        if tokens and tokens[0].kind == "env" and tokens[0].text in ("cases", "dcases"):
            return self.cases(tokens)
        if any(token.kind == "env" for token in tokens):
            return self.grid(tokens)
        parts, cuts = _split(tokens, lambda token: _is(token, ":"))
        if cuts:
            return self.ratio(parts)
        return self.quantity(tokens)

    def number_set(self, tokens: list[Token]) -> Answer:
        name = tokens[0].text
        rest = tokens[1:]
        if rest and _is(rest[0], "-"):
            return SetOperation("setminus", (NamedSet(name), self.value(rest[1:])))
        if rest and _is(rest[0], "^"):
            name += "^" + "".join(token.text for token in rest[1:] if token.text not in "{}")
        elif rest:
            raise Unreadable("a set with something behind it")
        return NamedSet(name)

    def bracketed(self, tokens: list[Token]) -> Answer | None:
        """The whole in one pair of brackets; None when it is not."""
        if len(tokens) > 4 and _is(tokens[0], "[", "]") and _is(tokens[-1], "[", "]") and (tokens[0].text, tokens[-1].text) != ("[", "]"):
            return self.turned_interval(tokens)
        if len(tokens) > 4 and tokens[0].kind == "run" and tokens[0].text in _POINT_NAMES and tokens[1].text == "(" and _wraps(tokens[1:]):
            point = self.bracketed(tokens[1:])
            return point if isinstance(point, Listing) else None
        if len(tokens) < 2 or not _wraps(tokens):
            return None
        opening, closing, inner = tokens[0].text, tokens[-1].text, tokens[1:-1]
        if opening == r"\{":
            return self.braces(inner)
        parts, cuts = _split(inner, lambda token: _is(token, ",", ";"))
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
        place = next((place for place, token in enumerate(tokens) if _is(token, ",", ";")), 0)
        if not 1 < place < len(tokens) - 2 or any(_is(token, "[", "]") for token in tokens[1:-1]):
            raise Unreadable("brackets that do not fit")
        low, high = parse_expression(tokens[1:place]), parse_expression(tokens[place + 1 : -1])
        return Interval(low, high, tokens[0].text == "[", tokens[-1].text == "]")

    def braces(self, inner: list[Token]) -> Answer:
        if not inner:
            return NamedSet("empty")
        described, bars = _split(inner, lambda token: _is(token, "|", ":"))
        if len(bars) == 1:
            element, _ = _split(described[0], lambda token: _is(token, "in"))
            if len(element[0]) == 1 and element[0][0].kind in ("run", "sym") and described[1]:
                return self.whole(described[1])
            raise Unreadable("a set described in a way not known here")
        parts, _ = _split(inner, _is_comma)
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
        if before and _is(before[-1], "(", "[") and behind and _is(behind[0], ")", "]"):
            before, behind = before[:-1], behind[1:]
        transposed = (
            len(behind) >= 2
            and behind[0].text == "^"
            and [token.text for token in behind[1:] if token.text not in "{}"] in (["T"], ["top"])
        )
        if behind and not transposed:
            raise Unreadable("a matrix with something behind it")
        lines, _ = _split(tokens[start + 1 : end], lambda token: _is(token, "\\\\"))
        rows = [[parse_expression(cell) for cell in _split(line, lambda token: _is(token, "&"))[0]] for line in lines if line]
        if not rows or any(len(row) != len(rows[0]) for row in rows):
            raise Unreadable("a matrix whose rows differ in length")
        if before:
            factor = parse_expression([*before, Token("number", "1")] if _is(before[-1], "-") else before)
            rows = [[Node("mul", (factor, cell)) for cell in row] for row in rows]
        return Grid(tuple(zip(*rows, strict=True)) if transposed else tuple(tuple(row) for row in rows))

    def cases(self, tokens: list[Token]) -> Answer:
        """A function in pieces: a list of pairs of value and condition, in any order."""
        if tokens[-1].kind != "endenv" or any(token.kind in ("env", "endenv") for token in tokens[1:-1]):
            raise Unreadable("cases with something around or inside")
        rows: list[Answer] = []
        for line in _split(tokens[1:-1], lambda token: _is(token, "\\\\"))[0]:
            if not line:
                continue
            cells, cuts = _split(line, lambda token: _is(token, "&"))
            if not cuts:
                cells, _ = _split(line, lambda token: _is(token, ","))
            if len(cells) != 2:
                raise Unreadable("a case without one value and one condition")
            value, condition = (cell[:-1] if cell and _is(cell[-1], ",") else cell for cell in cells)
            worded = bool(condition) and condition[0].kind == "text"
            if worded and condition[0].text.lower() in ("otherwise", "else"):
                rows.append(Listing("round", (self.value(value), NamedSet("otherwise"))))
            else:
                bare = condition[1:] if worded and condition[0].text.lower() in ("if", "for", "when", "where") else condition
                rows.append(Listing("round", (self.value(value), self.whole(bare))))
        return Listing("bare", tuple(rows))

    def quantity(self, tokens: list[Token]) -> Quantity:
        tokens = _without_lead(tokens)
        negative = len(tokens) > 1 and _is(tokens[0], "-") and _is(tokens[1], *_CURRENCIES)
        if len(tokens) > negative and tokens[negative].kind == "command" and tokens[negative].text in _CURRENCIES:
            money = read_unit(_CURRENCIES[tokens[negative].text])
            amount = self.quantity(tokens[1:]) if not negative else self.quantity([tokens[0], *tokens[2:]])
            return Quantity(amount.node, money if amount.unit is None or amount.unit.dimensions in (None, ()) else amount.unit)
        cut, unit = self.unit_behind(tokens)
        node = parse_expression(tokens[:cut])
        if unit is None:
            return Quantity(node)
        if unit.scale != 1:
            node = Node("mul", (node, num(unit.scale)))
        if unit.dimensions in ((("percent", 1),), (("degree", 1),)):
            return Quantity(node if node.op == "degree" else Node(str(unit.dimensions[0][0]), (node,)))
        return Quantity(node, unit if unit.dimensions else None)

    def unit_behind(self, tokens: list[Token]) -> tuple[int, Unit | None]:
        """Where the unit behind a number begins, and the unit; the end and None when there is none."""
        for place in range(1, len(tokens)):
            if not self.begins_unit(tokens, place):
                continue
            cut = place
            tail = list(tokens[place:])
            if tail[0].text in ("C", "F") and place >= 2 and tokens[place - 1].text in ("circ", "}"):
                while cut > 0 and tokens[cut].text != "^":
                    cut -= 1
                return cut, read_unit("celsius" if tail[0].text == "C" else "fahrenheit")
            if place >= 1 and (
                _is(tokens[place - 1], "*", "cdot", "times") or (tokens[place - 1].kind == "op" and tokens[place - 1].text in "({")
            ):
                cut = place - 1
            unit = read_unit(_phrase(tail))
            if unit is None:
                raise Unreadable("words behind a number that are no unit", final=True)
            return cut, unit
        return len(tokens), None

    def begins_unit(self, tokens: list[Token], place: int) -> bool:
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
            return (
                (self._letter_units or (token.upright and token.text not in "ei")) and after_number and last and is_known_unit(token.text)
            )
        return len(token.text) >= 4 or (after_number and (is_known_unit(token.text) or (len(token.text) == 3 and token.spaced)))


def _lines_as_items(tokens: list[Token]) -> list[Token]:
    """Lines below each other as a list; a line that begins with a sign of relation goes on with the one above."""
    items: list[Token] = []
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if not _is(token, "\\\\"):
            items.append(token)
        elif following is not None and not _is_relation(following):
            items.append(Token("op", ","))
    return items


def _phrase(tokens: list[Token]) -> str:
    """The tokens of a unit as plain text."""
    parts: list[str] = []
    over = False
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.kind == "command" and token.text == "frac":
            over = True
        elif over and token.text == "}" and "/" not in parts:
            parts.append("/")
        elif _is(token, "{", "}", "(", ")"):
            parts.append(" ")
        elif token.kind == "command" and token.text in ("cdot", "times"):
            parts.append("*")
        elif token.kind == "number" and before is not None and before.kind == "run" and not token.spaced and len(token.text) == 1:
            parts.append(f"^{token.text}")  # cm2
        elif token.kind == "number" and (before is None or before.text not in ("^", "-", "{")):
            parts.append("?")  # another number, as in 5 feet 3 inches
        elif token.kind in ("text", "run", "sym", "number") or _is(token, "^", "/", "*", "-", "."):
            parts.append(f" {token.text} " if token.kind in ("text", "run", "sym") else token.text)
        else:
            parts.append("?")
    return " ".join("".join(parts).split()).replace(" ^", "^").replace("^ ", "^")


def _without_lead(tokens: list[Token]) -> list[Token]:
    """The tokens behind an opening phrase that says nothing, such as `the answer is`."""
    while len(tokens) > 1 and ((tokens[0].kind == "text" and tokens[0].text.lower().strip(" :") in _LEADS) or _is(tokens[0], "approx")):
        tokens = tokens[1:]
    return tokens


def _wraps(tokens: list[Token]) -> bool:
    """Whether the first bracket is closed by the last token."""
    if not _is(tokens[0], *_OPENERS) or not _is(tokens[-1], *_CLOSERS):
        return False
    depth = 0
    for place, token in enumerate(tokens):
        if token.kind in ("op", "command"):
            depth += (token.text in _OPENERS) - (token.text in _CLOSERS)
            if depth == 0:
                return place == len(tokens) - 1
    return False


def _modulus_mark(tokens: list[Token]) -> tuple[int, int, int] | None:
    """Where a value ends and its modulus begins and ends: `3 \\pmod{7}`, `3 (\\text{mod } 7)`."""
    for place, token in enumerate(tokens):
        if place and token.kind == "command" and token.text in ("pmod", "mod"):
            return place, place + 1, len(tokens)
        said = tokens[place + 1] if place + 1 < len(tokens) else None
        if place and token.text == "(" and said is not None and said.text in ("mod", "bmod") and tokens[-1].text == ")":
            return place, place + 2, len(tokens) - 1
    return None


def _head(tokens: list[Token]) -> tuple[tuple[str, ...], tuple[str, ...] | None] | None:
    """The names that stand left of an equals sign, with a function's arguments; None when it is no name but an expression."""
    if all(token.kind == "text" for token in tokens):
        return (), None
    name, rest = _name(tokens)
    if name is not None and not rest:
        return (name,), None
    if name is not None and _wraps(rest) and rest[0].text == "(":
        parts, _ = _split(rest[1:-1], lambda token: _is(token, ","))
        return (name,), tuple("".join(token.text for token in part) for part in parts)
    if len(tokens) > 2 and tokens[0].text in ("(", r"\{") and _wraps(tokens):
        parts, cuts = _split(tokens[1:-1], lambda token: _is(token, ","))
        found = [_name(part) for part in parts]
        if cuts and all(one is not None and not behind for one, behind in found):
            return tuple(one for one, _ in found if one is not None), None
    if tokens[0].text == "angle" or (len(tokens) == 1 and tokens[0].kind == "run" and tokens[0].text.isupper()):
        return ("".join(token.text for token in tokens),), None
    return None


def _name(tokens: list[Token]) -> tuple[str | None, list[Token]]:
    """A name at the beginning, with its primes, subscript and inverse, and what follows it."""
    if not tokens or tokens[0].kind not in ("sym", "run") or (tokens[0].kind == "run" and len(tokens[0].text) > 1):
        return None, tokens
    name, at = tokens[0].text, 1
    while at < len(tokens) and tokens[at].text == "'":
        name, at = name + "'", at + 1
    while at + 1 < len(tokens) and tokens[at].text in ("_", "^"):
        sign = tokens[at].text
        end = at + 2
        if tokens[at + 1].text == "{":
            depth, end = 1, at + 2
            while end < len(tokens) and depth:
                depth += (tokens[end].text == "{") - (tokens[end].text == "}")
                end += 1
        inner = "".join(token.text for token in tokens[at + 1 : end] if token.text not in "{}")
        if sign == "^" and inner not in ("-1", "*", "T"):
            return None, tokens
        name, at = name + sign + inner, end
    return name, tokens[at:]


def _combined(items: list[Answer], words: set[str]) -> Answer:
    """Items of a bare list as one answer: conditions, names with their values, or a list."""
    items = [item for item in items if not _is_domain(item)] or items
    if len(items) == 1:
        return items[0]
    if any(isinstance(item, Relation) and not item.is_equation for item in items):
        items = [(_as_point(item) or item) if isinstance(item, Named) else item for item in items]
    if all(isinstance(item, Relation) for item in items) and not all(isinstance(item, Relation) and item.is_equation for item in items):
        return Conditions(
            "or" if "or" in words else "and" if "and" in words else "comma", tuple(item for item in items if isinstance(item, Relation))
        )
    first = items[0]
    if (
        isinstance(first, Named)
        and first.arguments is None
        and len(first.names) == 1
        and not any(item.also for item in items if isinstance(item, Named))
    ):
        named = [item for item in items if isinstance(item, Named)]
        names = [item.names for item in named]
        if len(named) == len(items) and len(set(names)) == len(names) and all(len(one) == 1 for one in names):
            return Named(tuple(one[0] for one in names), None, Listing("round", tuple(item.value for item in named)))
        if all(not isinstance(item, Named) or item.names == first.names for item in items):
            values = tuple(item.value if isinstance(item, Named) else item for item in items)
            return Named(first.names, None, Listing("bare", values))
    if (
        isinstance(first, Named)
        and len(first.names) > 1
        and all(not isinstance(item, Named) or item.names == first.names for item in items)
    ):
        return Named(first.names, None, Listing("bare", tuple(item.value if isinstance(item, Named) else item for item in items)))
    return Listing("bare", tuple(items))


def _as_point(item: Named) -> Relation | None:
    """`x = -1` beside inequalities, as a condition like them."""
    if len(item.names) != 1 or item.arguments is not None or not isinstance(item.value, Quantity):
        return None
    return Relation((Quantity(Node("sym", name=item.names[0])), item.value), ("=",))


def _is_domain(item: Answer) -> bool:
    """`k \\in \\mathbb{Z}` beside a formula with k: it says where a parameter ranges and is no answer of its own."""
    return isinstance(item, Named) and isinstance(item.value, NamedSet) and item.value.name in ("Z", "N", "Z^+", "R")


def variables(answer: Answer) -> frozenset[str]:
    """Names of all variables of the expressions in `answer`."""
    if isinstance(answer, Quantity):
        return symbols(answer.node)
    if isinstance(answer, Relation):
        return frozenset().union(*(symbols(side.node) for side in answer.sides))
    if isinstance(answer, Listing):
        return frozenset().union(*(variables(item) for item in answer.items))
    return frozenset()
