"""Tool answers cut to a number of tokens, head and tail kept, before they enter a prompt."""

from __future__ import annotations

from workers.llm.tokenizer import Tokenizer
from workers.sandbox.graphemes import whole_head, whole_tail

CHARACTERS_A_TOKEN = 16
"""More than any usual text has; what lies beyond so many characters of both ends need not be encoded to know that it goes."""
BEFORE_CUT = 64
"""Characters looked at before the tail, to know whether it begins inside of one that a reader takes for whole."""


def cut_observation(tokenizer: Tokenizer, text: str, max_tokens: int) -> str:
    """`text` in at most `max_tokens` tokens. What was left out is said in its place; no cut goes through a character.

    Where not even the words for what was left out fit, its beginning.
    """
    if max_tokens < 1:
        return ""
    if len(text) < max_tokens and text.isascii():
        return text  # no token is less than a byte, and no normal form changes ASCII
    span = max_tokens * CHARACTERS_A_TOKEN
    if len(text) <= 2 * span:
        ids = tokenizer.encode(text)
        if len(ids) <= max_tokens:
            return text
        head_ids = tail_ids = ids
    else:
        head_ids, tail_ids = tokenizer.encode(text[:span]), tokenizer.encode(text[-span:])
    keep = max_tokens
    while keep > 0:
        n_tail = keep // 2
        head = _beginning(tokenizer, text, head_ids, keep - n_tail)
        tail = _ending(tokenizer, text, tail_ids, n_tail)
        cut = f"{head}\n[{len(text) - len(head) - len(tail):,} characters left out]\n{tail}"
        excess = len(tokenizer.encode(cut)) - max_tokens
        if excess <= 0:
            return cut
        keep -= max(1, excess)
    keep = max_tokens
    # What a part of a text is encoded to need not be a part of what the text is encoded to.
    while len(tokenizer.encode(head := _beginning(tokenizer, text, head_ids, keep))) > max_tokens:
        keep -= 1
    return head


def _beginning(tokenizer: Tokenizer, text: str, ids: list[int], n: int) -> str:
    """Text of the first `n` tokens, up to the last whole character."""
    head = tokenizer.decode(ids[:n]).rstrip("\ufffd")
    return whole_head(head, text[len(head) : len(head) + 1])


def _ending(tokenizer: Tokenizer, text: str, ids: list[int], n: int) -> str:
    """Text of the last `n` tokens, from the first whole character."""
    tail = tokenizer.decode(ids[len(ids) - n :]).lstrip("\ufffd") if n else ""
    return whole_tail(text[max(0, len(text) - len(tail) - BEFORE_CUT) : len(text) - len(tail)], tail)
