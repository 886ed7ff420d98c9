"""Names that stand before an equals sign: variables, functions, tuples of variables, labels in words."""

from __future__ import annotations

from workers.graders.math_answer.spans import is_sign, split, wraps
from workers.graders.math_answer.tokens import Token


def read_head(tokens: list[Token]) -> tuple[tuple[str, ...], tuple[str, ...] | None] | None:
    """The names that stand left of an equals sign, with a function's arguments; None when it is no name but an expression."""
    if all(token.kind == "text" for token in tokens):
        return (), None
    name, rest = _name(tokens)
    if name is not None and not rest:
        return (name,), None
    if name is not None and wraps(rest) and rest[0].text == "(":
        parts, _ = split(rest[1:-1], lambda token: is_sign(token, ","))
        return (name,), tuple("".join(token.text for token in part) for part in parts)
    if len(tokens) > 2 and tokens[0].text in ("(", r"\{") and wraps(tokens):
        parts, cuts = split(tokens[1:-1], lambda token: is_sign(token, ","))
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
