"""Text of the scripts as the server gets them.

A script is its first line (`#!lua ...`), what it uses of the common heads, its body as a function, and then what the heads gathered. Only
what it uses: the functions of a head are made anew at each call, and all of them cost more than the work of a small script. So a head is
cut into its declarations, and one is there when the script, or what is there already, says a name that it declares. What follows a
declaration without declaring anything (a loop that fills a table) belongs to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

HEADS = ("lib", "endings", "admission", "cancels", "awaiting")
"""Heads of every script, each after what it uses; others are asked for by `-- needs: <head>`."""
_TAIL = "if not ok and type(reply) ~= 'table' then error(reply, 0) end\nreturn reply"
"""An error of a Redis command is a table, and as a reply it is that error again."""
_DECLARES = re.compile(r"^(?:local function (\w+)|local ([\w, ]+)|(\w+) = )", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A piece of a head."""

    text: str
    declares: frozenset[str]
    says: frozenset[str]
    """All words of its code."""


@lru_cache(maxsize=64)
def source(name: str) -> str:
    """Text of one script as the server gets it."""
    first, rest = _text(name).split("\n", 1)
    heads = [*HEADS, *re.findall(r"^-- needs: (\w+)$", rest, re.MULTILINE)]
    pieces = [piece for head in heads for piece in _declarations(head)]
    said, used = _words(rest) | {"settle_up"}, set[int]()
    while more := {number for number, piece in enumerate(pieces) if number not in used and piece.declares & said}:
        used |= more
        said = said.union(*(pieces[number].says for number in more))
    texts = [pieces[number].text for number in sorted(used)]
    # a body that fails half way has done its first half: what it gathered is done all the same, and then the error goes on
    return "\n".join((first, *texts, "local function body()", rest, "end", "local ok, reply = pcall(body)", "settle_up()", _TAIL))


@lru_cache(maxsize=64)
def _declarations(head: str) -> tuple[Declaration, ...]:
    """The pieces of a head: each begins where a line without indent declares something."""
    code = re.sub(r"^--.*\n", "", _text(head), flags=re.MULTILINE)
    starts = [found.start() for found in _DECLARES.finditer(code)]
    texts = [code[start:end].strip() for start, end in zip(starts, [*starts[1:], len(code)], strict=True)]
    return tuple(Declaration(text, _declared(text), _words(text)) for text in texts)


def _declared(text: str) -> frozenset[str]:
    found = _DECLARES.match(text)
    return frozenset(re.findall(r"\w+", "".join(filter(None, found.groups())))) if found else frozenset()


def _words(text: str) -> frozenset[str]:
    """Of its code: what stands in comments and in texts is no name, though a reply may be worded like one."""
    return frozenset(re.findall(r"\w+", re.sub(r"--.*|'[^'\n]*'", "", text)))


def _text(name: str) -> str:
    return (files("pipeline.scripts") / f"{name}.lua").read_text(encoding="utf-8")
