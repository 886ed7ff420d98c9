"""Tool answers cut to a number of tokens, head and tail kept, before they enter a prompt."""

from __future__ import annotations

from workers.llm.tokenizer import Tokenizer

CHARACTERS_A_TOKEN = 16
"""More than any usual text has; what lies beyond so many characters of both ends need not be encoded to know that it goes."""


def cut_observation(tokenizer: Tokenizer, text: str, max_tokens: int) -> str:
    """`text` in at most `max_tokens` tokens. What was left out is said in its place; a cut never leaves half a character."""
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
        head = tokenizer.decode(head_ids[: keep - n_tail]).rstrip("\ufffd")
        tail = tokenizer.decode(tail_ids[len(tail_ids) - n_tail :]).lstrip("\ufffd") if n_tail else ""
        cut = f"{head}\n[{len(text) - len(head) - len(tail):,} characters left out]\n{tail}"
        excess = len(tokenizer.encode(cut)) - max_tokens
        if excess <= 0:
            return cut
        keep -= max(1, excess)
    return tokenizer.decode(head_ids[:max_tokens]).rstrip("\ufffd")
