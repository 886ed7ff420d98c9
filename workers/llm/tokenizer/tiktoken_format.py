"""Vocabularies in tiktoken's format, as a `tokenizers` JSON file.

A tiktoken file lists tokens by rank and no merges. The merge that made a token is found by running the tokenizer on the token's
own bytes with all lower ranks: the two parts left before the last step are the pair.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping


def from_tiktoken(vocabulary: bytes, *, pattern: str, specials: Mapping[str, int], nfc: bool = False) -> bytes:
    """A `tokenizers` JSON definition, for `Tokenizer`.

    Args:
        vocabulary: lines of base64 token and rank.
        pattern: regular expression of the pieces that merges do not cross.
        specials: added tokens by text.
        nfc: whether text is brought to Unicode form NFC before encoding.

    Raises:
        ValueError: a line is not in the format, or a token cannot be made by merges.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(vocabulary.splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise ValueError(f"line {number}: expected a base64 token and a rank, got {line[:60]!r}") from error
    merges = [_merge_of(token, rank, ranks) for token, rank in sorted(ranks.items(), key=lambda item: item[1]) if len(token) > 1]
    definition = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": id_, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
            for text, id_ in sorted(specials.items(), key=lambda item: item[1])
        ],
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            # Added tokens stand in the vocabulary, too: left to themselves they are numbered on from its end, gaps closed. No merge
            # leads to them, so text cannot become one.
            "vocab": {_spell(token): rank for token, rank in ranks.items()} | dict(specials),
            "merges": [[_spell(left), _spell(right)] for left, right in merges],
        },
    }
    return json.dumps(definition, ensure_ascii=False).encode("utf-8")


def _merge_of(token: bytes, rank: int, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        best = min(
            (i for i in range(len(parts) - 1) if ranks.get(parts[i] + parts[i + 1], rank) < rank),
            key=lambda i: ranks[parts[i] + parts[i + 1]],
            default=None,
        )
        if best is None:
            raise ValueError(f"token {token!r} of rank {rank} cannot be made by merges of lower ranks")
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts[0], parts[1]


def _byte_letters() -> list[str]:
    """The visible letter that stands for each byte in byte-level vocabularies: itself where it is printable, else one above 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, spare = [], 0x100
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(spare))
            spare += 1
    return letters


_LETTERS = _byte_letters()


def _spell(token: bytes) -> str:
    return "".join(_LETTERS[byte] for byte in token)
