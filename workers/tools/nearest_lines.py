"""What to tell a model whose `old_str` is not in the file: the likely mistake, or the lines that are most like it.

Cost is linear in the file: words decide which few lines are compared letter by letter.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from difflib import SequenceMatcher

COMPARED = 40
"""Places that are compared letter by letter."""
COMPARED_CHARACTERS = 2000
"""Of each place: the comparison takes quadratic time."""
SHOWN = 2
LIKE = 0.5
"""Below this share of equal letters a place is no help."""
_WORD = re.compile(r"\w+")
_NUMBERED = re.compile(r"\s*\d+\t")


def why_not_found(lines: Sequence[str], old: str) -> str:
    """Sentences for the model, lines numbered from 1."""
    wanted = old.strip("\n").split("\n")
    if len(wanted) > 1 and all(_NUMBERED.match(line) for line in wanted):
        return "It begins each line with a number and a tab: these are shown by `view` and are not in the file. Leave them out."
    if at := _same_but_for_blanks(lines, wanted):
        last = at + len(wanted) - 1
        place = f"Line {at} differs" if at == last else f"Lines {at}-{last} differ"
        return f"{place} from it only in blanks. The file has:\n" + "\n".join(map(repr, lines[at - 1 : last]))
    places = nearest(lines, wanted)
    if not places:
        return "Nothing in the file is like it."
    shown = [_numbered(lines, at, len(wanted)) for at in places]
    return "The most similar places:\n" + "\n--\n".join(shown)


def nearest(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Numbers of the first lines of the places that are most like `wanted`, best first; none when nothing is."""
    size = len(wanted)
    words = set(_WORD.findall("\n".join(wanted)))
    if not words:
        return []
    shared = [len(words.intersection(_WORD.findall(line[:COMPARED_CHARACTERS]))) for line in lines]
    total, sums = sum(shared[: size - 1]), []
    for first in range(max(1, len(lines) - size + 1)):
        last = first + size - 1
        total += shared[last] if last < len(shared) else 0
        sums.append((total, -first))
        total -= shared[first] if first < len(shared) else 0
    text = "\n".join(wanted)[:COMPARED_CHARACTERS]
    matcher = SequenceMatcher(None, "", text, autojunk=False)
    scored = []
    for together, negative in heapq.nlargest(COMPARED, sums):
        if together:
            matcher.set_seq1("\n".join(lines[-negative : -negative + size])[:COMPARED_CHARACTERS])
            if matcher.real_quick_ratio() >= LIKE and matcher.quick_ratio() >= LIKE and (ratio := matcher.ratio()) >= LIKE:
                scored.append((ratio, negative))
    found: list[int] = []
    for _, negative in sorted(scored, reverse=True):
        if all(abs(-negative - other) >= size for other in found):  # neighbours of a good place are good too, and tell nothing more
            found.append(-negative)
    return [first + 1 for first in found[:SHOWN]]


def _same_but_for_blanks(lines: Sequence[str], wanted: Sequence[str]) -> int:
    """Number of the first line of a place that has the same letters; 0 when there is none."""
    bare = [_bare(line) for line in wanted]
    if not any(bare):
        return 0
    first = bare[0]
    for at in range(len(lines) - len(bare) + 1):
        if _bare(lines[at]) == first and all(_bare(line) == other for line, other in zip(lines[at:], bare, strict=False)):
            return at + 1
    return 0


def _bare(line: str) -> str:
    return "".join(line.split())


def _numbered(lines: Sequence[str], at: int, size: int) -> str:
    return "\n".join(f"{number:6}\t{line[:200]}" for number, line in enumerate(lines[at - 1 : at - 1 + min(size, 10)], start=at))
