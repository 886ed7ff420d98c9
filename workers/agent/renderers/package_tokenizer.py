"""Our tokenizer as the `renderers` package asks for one: encode, decode, ids of tokens.

The package writes templates and messages into one text and encodes that, so a message that spells a control token would become one. Here
messages are guarded before they are handed over: a mark that no text has is put into whatever looks like a token, and taken out again
when the text is encoded, as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from workers.llm.tokenizer import Tokenizer

GUARD = "\ufdd0"
"""A code point that Unicode keeps free of any character."""
_ESCAPED = r"\ufdd0"
"""What some templates make of it, which write the schemas of tools as JSON in ASCII."""
_REPLACEMENT = "\ufffd"


class PackageTokenizer:
    """The tokenizer of one model, for the package; its attributes are those that the package reads."""

    name_or_path = "rollstream"
    unk_token_id: int | None = None
    eos_token_id: int | None = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        names = sorted(tokenizer.specials, key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names)) if names else "(?!)")

    def guarded(self, text: str, *, allowed: Mapping[str, int] | None = None) -> str:
        """Text of a message, in which no token's text means that token, those of `allowed` aside."""
        clean, pieces, place = text.replace(GUARD, _REPLACEMENT).replace(_ESCAPED, _ESCAPED[:2] + GUARD + _ESCAPED[2:]), [], 0
        while found := self._names.search(clean, place):
            if allowed and found[0] in allowed:
                after = found.end()
                pieces.append(clean[place:after])
            else:  # the end of this token's text may be the beginning of another's: only its first character is done with
                after = found.start() + 1
                pieces.append(clean[place:after] + GUARD)
            place = after
        return "".join(pieces) + clean[place:]

    def encode(self, text: str, **_: Any) -> list[int]:
        """Ids of a piece of a template with guarded messages in it."""
        ids: list[int] = []
        place = 0
        for found in self._names.finditer(text):
            ids += self._tokenizer.encode(_unguarded(text[place : found.start()]))
            ids.append(self._tokenizer.specials[found[0]])
            place = found.end()
        return ids + self._tokenizer.encode(_unguarded(text[place:]))

    def decode(self, token_ids: Sequence[int] | int, **_: Any) -> str:
        """Text of ids, control tokens spelt out."""
        return self._tokenizer.decode([token_ids] if isinstance(token_ids, int) else list(token_ids))

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Ids of tokens by their text; None for what the vocabulary lacks."""
        if isinstance(tokens, str):
            found = self._tokenizer.specials.get(tokens)
            return found if found is not None else self._tokenizer.raw.token_to_id(tokens)
        return [self.convert_tokens_to_ids(token) for token in tokens]


def _unguarded(text: str) -> str:
    return text.replace(_ESCAPED, "").replace(GUARD, "")
