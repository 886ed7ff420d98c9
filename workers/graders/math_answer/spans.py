"""Stretches of tokens: signs of two characters, parts between separators, brackets that wrap, lines set below each other."""

from __future__ import annotations

from collections.abc import Callable

from workers.graders.math_answer.tokens import Token

_OPENERS = frozenset(("(", "[", "{", r"\{", "langle", "lfloor", "lceil"))
_CLOSERS = frozenset((")", "]", "}", r"\}", "rangle", "rfloor", "rceil"))
SIGNS = {"=": "=", "<": "<", ">": ">", "le": "le", "ge": "ge", "ne": "ne", "approx": "approx", "in": "in", "sim": "approx", "equiv": "="}
"""Signs of relation, as they are spelled and as they are meant."""
_JOINED = {("<", "="): "le", (">", "="): "ge", (":", "="): "=", ("=", "="): "=", ("=", ">"): "Rightarrow"}


def joined_signs(tokens: list[Token]) -> list[Token]:
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


def split(tokens: list[Token], is_cut: Callable[[Token], bool]) -> tuple[list[list[Token]], list[Token]]:
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


def is_comma(token: Token) -> bool:
    return token.kind in ("sep", "logic") or (token.kind == "op" and token.text in (",", ";"))


def is_relation(token: Token) -> bool:
    return token.kind in ("op", "command") and token.text in SIGNS


def is_sign(token: Token, *texts: str) -> bool:
    return token.kind in ("op", "command") and token.text in texts


def wraps(tokens: list[Token]) -> bool:
    """Whether the first bracket is closed by the last token."""
    if not is_sign(tokens[0], *_OPENERS) or not is_sign(tokens[-1], *_CLOSERS):
        return False
    depth = 0
    for place, token in enumerate(tokens):
        if token.kind in ("op", "command"):
            depth += (token.text in _OPENERS) - (token.text in _CLOSERS)
            if depth == 0:
                return place == len(tokens) - 1
    return False


def lines_as_items(tokens: list[Token]) -> list[Token]:
    """Lines below each other as a list; a line that begins with a sign of relation goes on with the one above."""
    items: list[Token] = []
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if not is_sign(token, "\\\\"):
            items.append(token)
        elif following is not None and not is_relation(following):
            items.append(Token("op", ","))
    return items


def modulus_mark(tokens: list[Token]) -> tuple[int, int, int] | None:
    """Where a value ends and its modulus begins and ends: `3 \\pmod{7}`, `3 (\\text{mod } 7)`."""
    for place, token in enumerate(tokens):
        if place and token.kind == "command" and token.text in ("pmod", "mod"):
            return place, place + 1, len(tokens)
        said = tokens[place + 1] if place + 1 < len(tokens) else None
        if place and token.text == "(" and said is not None and said.text in ("mod", "bmod") and tokens[-1].text == ")":
            return place, place + 2, len(tokens) - 1
    return None
