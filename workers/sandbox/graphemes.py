"""Where a text may be cut so that no letter loses its accent and no emoji falls apart.

What a reader takes for one character can be many code points: a letter and its marks, people joined to a family, two letters of a flag. The
rules here are the ones that matter for cut text (Unicode's extended clusters, without scripts' conjunct rules); they need no tables beyond
`unicodedata`.
"""

from __future__ import annotations

from unicodedata import category

LONGEST = 64
"""Code points of one cluster: whoever stacks more marks on a letter does so on purpose, and is cut anywhere."""
JOINER = "\u200d"


def whole_head(head: str, following: str) -> str:
    """`head` without the cluster that the cut before `following` went through; as it is when it went through none."""
    for back in range(min(LONGEST, len(head)) + 1):
        kept = head[: len(head) - back]
        if not is_inside_cluster(kept, head[len(kept) : len(kept) + 1] or following):
            return kept
    return head


def whole_tail(preceding: str, tail: str) -> str:
    """`tail` without what of its beginning belongs to a cluster that began before it."""
    for forward in range(min(LONGEST, len(tail)) + 1):
        before = preceding[-LONGEST:] + tail[:forward]
        if not is_inside_cluster(before, tail[forward : forward + 1]):
            return tail[forward:]
    return tail


def is_inside_cluster(before: str, after: str) -> bool:
    """Whether what a reader takes for one character goes on from the end of `before` into `after`."""
    if not before or not after:
        return False
    if after[0].isascii():
        return before[-1] == "\r" and after[0] == "\n"
    if _extends(after[0]) or before[-1] == JOINER:
        return before[-1] not in "\r\n"
    return _is_flag_letter(after[0]) and _flag_letters_at_end(before) % 2 == 1


def _extends(character: str) -> bool:
    return (
        category(character)[0] == "M"  # accents, vowel signs, variation selectors
        or character == JOINER
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # colours of skin
        or "\U000e0020" <= character <= "\U000e007f"  # tags of regional flags
        or "\u1160" <= character <= "\u11ff"  # vowels and finals of Hangul syllables
    )


def _is_flag_letter(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _flag_letters_at_end(text: str) -> int:
    return len(text) - len(text.rstrip("".join(map(chr, range(0x1F1E6, 0x1F200)))))
