r"""Cutting an answer into tokens, for LaTeX and plain text alike.

A run of plain letters stays one `run` token here (`abc`, `cm`, `nlogn`): whether it is a product, a unit or a word depends on what
stands around it, which only later layers see. Names of functions, constants and Greek letters are recognised inside runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from workers.graders.math_answer.unreadable import Unreadable

MAX_TOKENS = 1_200
"""An answer of more tokens is refused; the longest honest answers have a few hundred."""

FUNCTIONS: Final = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "ln", "log",
    "lg", "exp", "sqrt", "cbrt", "abs", "max", "min", "gcd", "lcm", "floor", "ceil", "sgn",
))  # fmt: skip
GREEK: Final = frozenset((
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi", "rho", "sigma",
    "tau", "upsilon", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Sigma", "Phi", "Psi", "Omega", "ell",
    "hbar", "aleph", "nabla", "partial", "Pi",
))  # fmt: skip
CONSTANTS: Final = {"pi": "pi", "infty": "inf", "inf": "inf", "infinity": "inf", "oo": "inf", "imath": "i"}
_TEXT_COMMANDS: Final = frozenset((
    "text", "mbox", "hbox", "textrm", "textnormal", "textit", "textbf", "textsf", "texttt", "mathrm", "operatorname", "mathit",
    "mathsf", "mathtt",
))  # fmt: skip
_STYLE_COMMANDS: Final = frozenset((
    "mathbf", "boldsymbol", "bm", "mathcal", "mathscr", "mathfrak", "vec", "hat", "bar", "overline", "widehat", "overrightarrow",
    "tilde", "bold",
))  # fmt: skip
_SEPARATOR_WORDS: Final = {"and": "and", "or": "or", "&": "and"}
WORDS_NOT_PRODUCTS: Final = frozenset(
    ["nan", "no", "yes", "dne", "not", "none", "true", "false", "if", "is", "all", "one", "two", "ten", "to", "of", "the", "it"]
)

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<hex>0[xX][0-9a-fA-F]+(?![0-9A-Za-z]))
    |(?P<number>(?:\d{1,3}(?:,\d{3})+(?![\d])|\d{1,3}(?:\ \d{3})+(?![\d])|\d+)(?:\.(?:\d+|(?=\\(?:overline|bar|dot)\b)))?|\.\d+)
    |(?P<command>\\[A-Za-z]+)
    |(?P<escaped>\\[^A-Za-z])
    |(?P<run>[A-Za-z]+)
    |(?P<char>.)""",
    re.VERBOSE | re.DOTALL,
)
_EXPONENT = re.compile(r"[eE][+-]?\d+(?![\d.])")
_REPEATING = re.compile(r"\\(?:overline|bar|dot)\s*\{?\s*(\d+)\s*\}?|\((\d+)\)")
_ONE_LETTER = re.compile(r"[A-Za-z]'*$")
_COUNTED = re.compile(r"(-?\d[\d.,]*)\s+([A-Za-z].*)$", re.DOTALL)
_INSIDE_RUN = re.compile("|".join(sorted(FUNCTIONS | {"pi", "theta", "alpha", "beta"}, key=len, reverse=True)))


@dataclass(frozen=True, slots=True)
class Token:
    """One token."""

    kind: str
    """number, sym, const, fn, run, text, set, sep, logic, env, endenv, command, or op (every other sign, spelled in `text`)."""
    text: str
    spaced: bool = False
    """Whether a blank stood before it; tells the mixed number `1 1/2` from `11/2`."""
    repeating: str = ""
    """The digits that repeat without end after those in `text`, for a number such as `0.\\overline{3}`."""
    upright: bool = False
    """A single letter set upright, which a unit is and a variable is not."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """Choices between two honest readings of the same characters; a grader tries each that applies."""

    commas_group: bool = True
    """`1,000` is a thousand; else it is the list of 1 and 0."""
    scientific: bool = True
    """`2e-3` is 0.002; else it is twice Euler's number less three."""


def spellings(text: str) -> tuple[Spelling, ...]:
    """The readings of `text` that can differ."""
    commas = (True, False) if re.search(r"\d,\d{3}(?!\d)", text) else (True,)
    exponents = (True, False) if re.search(r"\de[+-]\d", text) else (True,)
    return tuple(Spelling(group, scientific) for group in commas for scientific in exponents)


def tokenize(text: str, spelling: Spelling = Spelling()) -> list[Token]:
    """Tokens of a text that `surface` has prepared.

    Raises:
        Unreadable: too many tokens, or a command whose braces never close.
    """
    tokens: list[Token] = []
    at, spaced = 0, False
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, "the last alternative takes any character"
        kind, piece = str(match.lastgroup), match.group()
        at = match.end()
        if kind == "space":
            spaced = True
            continue
        if kind == "number":
            at = _number(text, at, piece, spaced, spelling, tokens)
        elif kind == "hex":
            tokens.append(Token("number", str(int(piece, 16)), spaced))
        elif kind == "command":
            at = _command(text, at, piece[1:], spaced, tokens)
        elif kind == "run":
            tokens.extend(cut_run(piece, spaced))
        elif piece == "?" or piece == '"' or piece == "`" or piece == "\\" or piece == "#" or piece == "@":
            raise Unreadable(f"{piece!r} is no mathematics", final=True)
        elif not piece.isascii() and piece.isalpha():
            tokens.append(Token("sym", piece, spaced))
        else:
            tokens.append(
                Token("sep", "and", spaced)
                if piece == r"\&"
                else Token("op", piece.removeprefix("\\") if piece in (r"\%",) else piece, spaced)
            )
        spaced = False
        if len(tokens) > MAX_TOKENS:
            raise Unreadable(f"more than {MAX_TOKENS} tokens", final=True)
    return tokens


def _number(text: str, at: int, piece: str, spaced: bool, spelling: Spelling, tokens: list[Token]) -> int:
    if "," in piece and not spelling.commas_group:
        head = piece.split(",", 1)[0]
        tokens.append(Token("number", head, spaced))
        return at - len(piece) + len(head)
    digits = piece.replace(",", "").replace(" ", "")
    if "." in digits and (repeating := _REPEATING.match(text, at)) is not None:
        tokens.append(Token("number", digits, spaced, repeating.group(1) or repeating.group(2)))
        return repeating.end()
    if spelling.scientific and (exponent := _EXPONENT.match(text, at)) is not None:
        tokens.append(Token("number", digits + exponent.group(), spaced))
        return exponent.end()
    tokens.append(Token("number", digits, spaced))
    return at


def _command(text: str, at: int, name: str, spaced: bool, tokens: list[Token]) -> int:
    if name in _TEXT_COMMANDS:
        content, at = _braced(text, at)
        tokens.extend(_words(content, spaced))
    elif name in _STYLE_COMMANDS:
        content, at = _braced(text, at)
        inner = content.strip()
        tokens.extend([Token("sym", inner, spaced)] if inner.isalpha() and inner.isascii() else tokenize(content))
    elif name == "mathbb" or name == "Bbb":
        content, at = _braced(text, at)
        tokens.append(Token("set", content.strip(), spaced))
    elif name in ("begin", "end"):
        content, at = _braced(text, at)
        tokens.append(Token("env" if name == "begin" else "endenv", content.strip().removesuffix("*"), spaced))
        if name == "begin" and content.strip() == "array" and text[at : at + 1] == "{":
            _, at = _braced(text, at)
    elif name in FUNCTIONS:
        tokens.append(Token("fn", name, spaced))
    elif name in CONSTANTS:
        tokens.append(Token("const", CONSTANTS[name], spaced))
    elif name in GREEK:
        tokens.append(Token("sym", name, spaced))
    elif name in ("lor", "land"):
        tokens.append(Token("logic", "or" if name == "lor" else "and", spaced))
    elif name in ("Re", "Im", "det", "arg", "deg", "dim", "ker"):
        tokens.append(Token("sym", name, spaced))
    else:
        tokens.append(Token("command", name, spaced))
    return at


def _braced(text: str, at: int) -> tuple[str, int]:
    """The braced argument at `at` and where it ends; one character when there are no braces, as in TeX."""
    while text[at : at + 1] == " ":
        at += 1
    if text[at : at + 1] != "{":
        return text[at : at + 1], at + 1
    depth = 0
    for place in range(at, len(text)):
        if text[place] == "{":
            depth += 1
        elif text[place] == "}":
            depth -= 1
            if depth == 0:
                return text[at + 1 : place], place + 1
    raise Unreadable("a brace is never closed")


def _words(content: str, spaced: bool) -> list[Token]:
    """Tokens of upright text: a separator word, a letter, a number or function name in disguise, else a phrase."""
    phrase = content.strip()
    lowered = phrase.lower()
    if not phrase:
        return []
    if lowered in _SEPARATOR_WORDS:
        return [Token("sep", _SEPARATOR_WORDS[lowered], spaced)]
    if phrase in FUNCTIONS:
        return [Token("fn", phrase, spaced)]
    if lowered in ("infinity", "inf") or phrase in ("pi",):
        return [Token("const", "pi" if phrase == "pi" else "inf", spaced)]
    if len(phrase) == 1 and phrase.isalpha() and phrase.isascii():
        return [Token("run", phrase, spaced, upright=True)]
    if _ONE_LETTER.match(phrase) or not any(letter.isalpha() for letter in phrase):
        return tokenize(phrase)
    if lowered.startswith(("and ", "or ")) or lowered.endswith((" and", " or")) or phrase[0] in ",;" or phrase[-1] in ",;":
        return _pieces(phrase)
    if (counted := _COUNTED.match(phrase)) is not None:
        return [*tokenize(counted.group(1)), Token("text", counted.group(2), True)]
    return [Token("text", phrase, True)]


def _pieces(phrase: str) -> list[Token]:
    """A phrase with separators at its ends, such as `, and ` or `meters and`."""
    tokens: list[Token] = []
    for piece in re.split(r"(,|;|\band\b|\bor\b)", phrase):
        word = piece.strip()
        if word.lower() in _SEPARATOR_WORDS:
            tokens.append(Token("sep", word.lower(), True))
        elif word in (",", ";"):
            tokens.append(Token("op", word, True))
        elif word:
            tokens.append(Token("text", word, True))
    return tokens


def cut_run(letters: str, spaced: bool) -> list[Token]:
    """Tokens of plain letters: `nlogn` holds a function, `abc` is one run, to be read later."""
    lowered = letters.lower()
    if lowered in _SEPARATOR_WORDS:
        return [Token("sep", _SEPARATOR_WORDS[lowered], spaced)]
    if letters in FUNCTIONS:
        return [Token("fn", letters, spaced)]
    if letters in CONSTANTS or lowered in ("infinity", "inf"):
        return [Token("const", CONSTANTS.get(letters, "inf"), spaced)]
    if letters in GREEK:
        return [Token("sym", letters, spaced)]
    if len(letters) > 2 and (inside := _INSIDE_RUN.search(letters)) is not None:
        before, after = letters[: inside.start()], letters[inside.end() :]
        if len(before) <= 2 and len(after) <= 2 and lowered not in WORDS_NOT_PRODUCTS:
            middle = cut_run(inside.group(), spaced and not before)
            return [*(cut_run(before, spaced) if before else ()), *middle, *(cut_run(after, False) if after else ())]
    return [Token("run", letters, spaced)]
