r"""From tokens to an expression tree: a recursive descent over LaTeX and plain notation together.

Precedence, loosest first: sums; products, written out or by standing side by side; signs; powers and what follows a factor (`!`, `%`,
the degree sign). A function without brackets takes the product behind it up to the next function, so `\sin 2x \cos x` is two factors.
"""

from __future__ import annotations

from fractions import Fraction

from workers.graders.math_answer.expression import Node, neg, num
from workers.graders.math_answer.tokens import WORDS_NOT_PRODUCTS, Token
from workers.graders.math_answer.unreadable import Unreadable

MAX_DEPTH = 120
"""Nesting beyond this is refused; it keeps the recursion far from Python's own limit."""
MAX_POSTFIXES = 12
"""Factorials and exponents behind one factor."""
MAX_LITERAL_DIGITS = 20_000
MAX_LITERAL_EXPONENT = 20_000
"""Bounds on one written number: it becomes an exact fraction, and that must stay cheap."""
_DIGIT_CHUNK = 2_000
"""Python refuses to read more than some thousand digits at once; longer numbers are put together from chunks."""

_CLOSERS = {"(": ")", "[": "]", "{": "}", "|": "|", r"\|": r"\|", r"\{": r"\}"}
_CALLED = frozenset(("f", "g", "h"))
"""Letters that name a function when a bracket follows; before any other letter a bracket is a factor."""
_LANDAU = frozenset(("O", "o", "Theta", "Omega", "omega"))
_NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan"}
_INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_MANY = frozenset(("max", "min", "gcd", "lcm"))


def parse_expression(tokens: list[Token]) -> Node:
    """The tree of all of `tokens`.

    Raises:
        Unreadable: they are no single expression.
    """
    parser = _Parser(tokens)
    node = parser.sum()
    if parser.at < len(parser.tokens):
        left = parser.tokens[parser.at]
        raise Unreadable(f"{left.text!r} does not fit where it stands", final=left.kind in ("text", "sep") or left.text in ("'", "ldots"))
    return node


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = list(tokens)
        self.at = 0
        self.depth = 0

    def look(self, ahead: int = 0) -> Token | None:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else None

    def is_op(self, *texts: str) -> bool:
        token = self.look()
        return token is not None and token.kind == "op" and token.text in texts

    def is_command(self, *names: str) -> bool:
        token = self.look()
        return token is not None and token.kind == "command" and token.text in names

    def take(self) -> Token:
        token = self.look()
        if token is None:
            raise Unreadable("it ends too early")
        self.at += 1
        return token

    def expect(self, text: str) -> None:
        if not self.is_op(text):
            found = self.look()
            raise Unreadable(f"expected {text!r}, found {found.text if found else 'the end'!r}")
        self.at += 1

    def deeper(self) -> None:
        """Called where the descent recurses; `self.depth` is given back by `shallower`. After an error the parser is not used again."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable(f"nested deeper than {MAX_DEPTH}", final=True)

    def shallower(self, node: Node) -> Node:
        self.depth -= 1
        return node

    def sum(self) -> Node:
        self.deeper()
        terms = [self.signed_product()]
        while self._starts_term():
            terms.append(self.signed_product())
        return self.shallower(terms[0] if len(terms) == 1 else Node("add", tuple(terms)))

    def _starts_term(self) -> bool:
        return self.is_op("+", "-") or self.is_command("pm", "mp")

    def signed_product(self) -> Node:
        """A product behind any signs: `- -2`, `+ -2i` and `\\pm 3` occur."""
        negative, choice = False, ""
        while self._starts_term():
            sign = self.take().text
            if sign in ("pm", "mp"):
                if choice:
                    raise Unreadable("two plus-minus signs before one term")
                choice = sign
            else:
                negative ^= sign == "-"
        node = self.product()
        if negative:
            node = neg(node)
        return Node(choice, (node,)) if choice else node

    def product(self, *, function_argument: bool = False) -> Node:
        above = [self.power()]
        below: list[Node] = []
        while True:
            times = self.is_op("*") or self.is_command("times", "cdot")
            over = self.is_op("/") or self.is_command("div")
            if (times or over) and not function_argument:
                self.at += 1
                (above if times else below).append(self.signed_factor())
            elif self._starts_factor(function_argument):
                above.append(self.power())
            else:
                break
        node = above[0] if len(above) == 1 else Node("mul", tuple(above))
        if below:
            node = Node("div", (node, below[0] if len(below) == 1 else Node("mul", tuple(below))))
        return node

    def signed_factor(self) -> Node:
        negative = False
        while self.is_op("-", "+"):
            negative ^= self.take().text == "-"
        return neg(self.power()) if negative else self.power()

    def _starts_factor(self, function_argument: bool) -> bool:
        """Whether a factor can begin here without a sign of multiplication."""
        token = self.look()
        if token is None:
            return False
        if token.kind == "fn":
            return not function_argument
        if token.kind == "number":
            previous = self.tokens[self.at - 1]
            return previous.kind != "number"
        if token.kind in ("sym", "const", "run"):
            return True
        if token.kind == "command":
            return token.text in ("frac", "binom", "lfloor", "lceil")
        return token.kind == "op" and token.text in ("(", "{", "[") and not (function_argument and token.text == "(")

    def power(self) -> Node:
        node = self.primary()
        for _ in range(MAX_POSTFIXES):
            if self.is_op("^"):
                self.at += 1
                node = self.raised(node)
            elif self.is_op("!"):
                self.at += 1
                double = self.is_op("!")
                self.at += double
                node = Node("dfact" if double else "fact", (node,))
            elif self.is_op("%"):
                self.at += 1
                node = Node("percent", (node,))
            elif self.is_op("*") and (following := self.look(1)) is not None and following.kind == "op" and following.text == "*":
                self.at += 2
                node = Node("pow", (node, self.signed_factor()))
            else:
                return node
        raise Unreadable(f"more than {MAX_POSTFIXES} signs behind one factor", final=True)

    def raised(self, base: Node) -> Node:
        if self.is_command("circ") or (self.is_op("{") and self._is_circle(1)):
            self.at += 1 if self.is_command("circ") else 3
            return Node("degree", (base,))
        return Node("pow", (base, self.script()))

    def _is_circle(self, ahead: int) -> bool:
        inner, closing = self.look(ahead), self.look(ahead + 1)
        return inner is not None and inner.kind == "command" and inner.text == "circ" and closing is not None and closing.text == "}"

    def script(self) -> Node:
        """An exponent: a group, or one signed factor with its own exponent, as in `2^3^2`."""
        self.deeper()
        negative = False
        while self.is_op("-", "+"):
            negative ^= self.take().text == "-"
        node = self.grouped() if self.is_op("{") else self.primary(single=True)
        if self.is_op("^"):
            self.at += 1
            node = self.raised(node)
        return self.shallower(neg(node) if negative else node)

    def grouped(self) -> Node:
        opening = self.take().text
        node = self.sum()
        self.expect(_CLOSERS[opening])
        return node

    def primary(self, *, single: bool = False) -> Node:
        """A factor without what follows it; with `single` the one digit or letter that TeX would take."""
        self.deeper()
        token = self.take()
        if token.kind == "number":
            node = self.number(token, single)
        elif token.kind == "sym":
            node = self.symbol(token.text)
        elif token.kind == "const":
            node = Node("const", name=token.text)
        elif token.kind == "fn":
            node = self.function(_NAMES.get(token.text, token.text))
        elif token.kind == "run":
            node = self.letters(token.text)
        elif token.kind == "command":
            node = self.command(token.text)
        elif token.kind == "op" and token.text in ("(", "{", "["):
            self.at -= 1
            node = self.grouped()
        elif token.kind == "op" and token.text in ("|", r"\|"):
            node = self.sum()
            self.expect(token.text)
            node = Node("fn", (node,), "abs")
        else:
            raise Unreadable(f"{token.text!r} begins no expression", final=token.kind in ("text", "sep"))
        return self.shallower(node)

    def number(self, token: Token, single: bool) -> Node:
        whole = literal(token)
        if single:
            return whole
        if self.is_op("_"):
            self.at += 1
            return based(token.text, self.script())
        if whole.decimals < 0 and (part := self.proper_fraction()) is not None:
            return num(whole.number + part)
        return whole

    def proper_fraction(self) -> Fraction | None:
        r"""The fraction of a mixed number, written `1\frac{1}{2}` or `1 1/2`; nothing is taken when there is none."""
        start, tokens = self.at, list(self.tokens)
        first = self.look()
        pair: tuple[Token, Token] | None = None
        if first is not None and first.kind == "command" and first.text == "frac":
            self.at += 1
            upper, lower = self.bare_number(), self.bare_number()
            pair = (upper, lower) if upper is not None and lower is not None else None
        elif first is not None and first.kind == "number" and first.spaced and (slash := self.look(1)) is not None and slash.text == "/":
            bottom = self.look(2)
            if bottom is not None and bottom.kind == "number":
                self.at += 3
                pair = (first, bottom)
        if pair is not None and pair[0].text.isdigit() and pair[1].text.isdigit() and max(len(part.text) for part in pair) < 12:
            top, under = int(pair[0].text), int(pair[1].text)
            if 0 < top < under:
                return Fraction(top, under)
        self.at, self.tokens = start, tokens
        return None

    def bare_number(self) -> Token | None:
        """A number alone in braces, or one digit without them."""
        token = self.look()
        if token is not None and token.kind == "number":
            if len(token.text) > 1:
                self.tokens[self.at] = Token("number", token.text[1:])
                return Token("number", token.text[0])
            self.at += 1
            return token
        inner, closing = self.look(1), self.look(2)
        if (
            token is not None
            and token.text == "{"
            and inner is not None
            and inner.kind == "number"
            and closing is not None
            and closing.text == "}"
        ):
            self.at += 3
            return inner
        return None

    def symbol(self, name: str) -> Node:
        full = name
        while self.is_op("'"):
            self.at += 1
            full += "'"
        if self.is_op("_"):
            self.at += 1
            full += "_" + self.subscript()
        if self.is_op("("):
            if name in _LANDAU:
                return Node("call", self.arguments(), full)
            if name in _CALLED:
                return Node("call", self.arguments(), full)
        if full == "e" or full == "i":
            return Node("const", name=full)
        return Node("sym", name=full)

    def subscript(self) -> str:
        """A subscript as a part of the name: it is compared, never computed."""
        if not self.is_op("{"):
            return self.take().text
        depth = 0
        parts: list[str] = []
        while True:
            token = self.take()
            if token.text == "{":
                depth += 1
            elif token.text == "}":
                depth -= 1
                if depth == 0:
                    return "".join(parts)
            else:
                parts.append(token.text)

    def letters(self, run: str) -> Node:
        """A run of plain letters as a product of one-letter variables; longer runs are words."""
        if len(run) > 3 or run.lower() in WORDS_NOT_PRODUCTS:
            raise Unreadable(f"{run!r} is a word", final=True)
        self.tokens[self.at : self.at] = [Token("sym", letter) for letter in run[1:]]
        return self.symbol(run[0])

    def arguments(self) -> tuple[Node, ...]:
        """Expressions between round brackets, apart by commas."""
        self.expect("(")
        found = [self.sum()]
        while self.is_op(","):
            self.at += 1
            found.append(self.sum())
        self.expect(")")
        return tuple(found)

    def function(self, name: str) -> Node:
        if name in ("sqrt", "cbrt"):
            return self.root(3 if name == "cbrt" else 2)
        exponent: Node | None = None
        extra: tuple[Node, ...] = ()
        while self.is_op("^", "_"):
            if self.take().text == "^":
                exponent = self.script()
            else:
                extra = (self.script(),)
        if exponent is not None and name in _INVERSES and exponent.op == "num" and exponent.number == -1:
            name, exponent = _INVERSES[name], None
        if name in _MANY:
            values = self.arguments()
        elif self.is_op("(", "{", "["):
            values = (self.grouped(),)
        elif self.is_op("|"):
            values = (self.primary(),)
        else:
            negative = self.is_op("-")
            self.at += negative
            value = self.product(function_argument=True)
            values = (neg(value) if negative else value,)
        node = Node("pow", (Node("const", name="e"), values[0])) if name == "exp" else Node("fn", values + extra, name)
        return node if exponent is None else Node("pow", (node, exponent))

    def root(self, index: int) -> Node:
        degree = num(index)
        if self.is_op("["):
            degree = self.grouped()
        if self.is_op("{", "("):
            return Node("root", (degree, self.grouped()))
        return Node("root", (degree, self.primary(single=True)))

    def command(self, name: str) -> Node:
        if name == "frac":
            return Node("div", (self.half(), self.half()))
        if name == "sqrt":
            return self.root(2)
        if name == "binom":
            return Node("binom", (self.half(), self.half()))
        if name in ("lfloor", "lceil"):
            node = self.sum()
            closing = self.take()
            if closing.text != name.replace("l", "r", 1):
                raise Unreadable(f"expected \\{name.replace('l', 'r', 1)}, found {closing.text!r}")
            return Node("fn", (node,), "floor" if name == "lfloor" else "ceil")
        if name == "ldots":
            return Node("sym", name="...")
        if name in ("angle", "triangle", "odot", "bot", "top"):
            return Node("sym", name=name)
        raise Unreadable(f"\\{name} is not known here")

    def half(self) -> Node:
        r"""One part of a fraction: a group, or in TeX's shorthand `\frac12` one digit or letter."""
        if self.is_op("{"):
            return self.grouped()
        token = self.look()
        if token is not None and token.kind == "number" and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.at] = Token("number", token.text[1:])
            return num(int(token.text[0]))
        return self.primary(single=True)


def literal(token: Token) -> Node:
    """The exact value of a written number, remembering how many digits were written."""
    mantissa, _, exponent_text = token.text.replace("E", "e").partition("e")
    if len(mantissa) > MAX_LITERAL_DIGITS or len(exponent_text) > 6 or abs(int(exponent_text or 0)) > MAX_LITERAL_EXPONENT:
        raise Unreadable("a number is too long", final=True)
    whole, point, behind = mantissa.partition(".")
    shift = int(exponent_text or 0) - len(behind)
    value = Fraction(_integer(whole + behind)) * Fraction(10) ** shift
    if token.repeating:
        value += Fraction(_integer(token.repeating), 10 ** len(token.repeating) - 1) * Fraction(10) ** shift
        return num(value)
    if not point:
        return num(value)
    significant = len((whole + behind).lstrip("0"))
    return Node("num", number=value, decimals=-shift, significant=significant)


def based(digits: str, base: Node) -> Node:
    """A number written in another base, `1011_2`; its digits are kept beside its value."""
    if base.op != "num" or base.number.denominator != 1 or not 2 <= base.number <= 10 or not digits.isdigit() or len(digits) > 200:
        raise Unreadable("a subscript on a number that is no base")
    radix = int(base.number)
    if any(int(digit) >= radix for digit in digits):
        raise Unreadable(f"{digits} has digits that base {radix} does not have")
    return Node("based", (num(int(digits)),), name=str(radix), number=Fraction(int(digits, radix)))


def _integer(digits: str) -> int:
    value = 0
    for start in range(0, len(digits), _DIGIT_CHUNK):
        chunk = digits[start : start + _DIGIT_CHUNK]
        value = value * 10 ** len(chunk) + int(chunk)
    return value
