"""Renderings in pieces: texts, and the texts of single control tokens.

A template that is first one long text and then encoded cannot tell its own control tokens from those that a tool's answer spells. So
templates here give parts, and each part says which it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from workers.llm.images import PlacedImage, SeenImage
from workers.llm.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a rendering: text, the text of one control token, or an image, whose placeholder that token is."""

    text: str
    is_token: bool = False
    image: SeenImage | None = None


SHORT_TEXT = 64
"""Characters. The frames of a template are shorter, and every turn splits them again."""
Splitter = Callable[[str], list[Part]]


def splitter(names: Iterable[str]) -> Splitter:
    """A function that takes trusted text apart into texts and the tokens of these names."""
    known = frozenset(names)
    longest_first = sorted(known, key=len, reverse=True)
    pattern = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")" if known else "(?!)")

    def split(text: str) -> list[Part]:
        return [*split_short(text)] if len(text) <= SHORT_TEXT else [*split_any(text)]

    def split_any(text: str) -> tuple[Part, ...]:
        return tuple(Part(piece, piece in known) for piece in pattern.split(text) if piece)

    split_short = lru_cache(maxsize=256)(split_any)
    return split


def is_control(name: str) -> bool:
    """Whether a token is part of the dialogue's frame, which no message may write; markup such as `<tool_call>` is not."""
    return name.startswith("<|")


def encode_parts(tokenizer: Tokenizer, parts: Iterable[Part], images: list[PlacedImage] | None = None) -> list[int]:
    """Ids of a rendering. Neighbouring texts are encoded as one: merges cross message borders, not control tokens.

    Args:
        images: gets those of the rendering, with their places in it.
    """
    ids: list[int] = []
    texts: list[str] = []
    for part in parts:
        if not part.is_token:
            texts.append(part.text)
            continue
        if texts:
            ids += tokenizer.encode("".join(texts))
            texts.clear()
        if part.image is None:
            ids.append(tokenizer.special(part.text))
            continue
        assert images is not None, "whoever renders images wants to know where they stand"
        images.append(PlacedImage(len(ids), part.image))
        ids += [tokenizer.special(part.text)] * part.image.read.n_tokens
    return ids + tokenizer.encode("".join(texts)) if texts else ids
