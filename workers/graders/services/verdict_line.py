"""What a judge decided: its last line, and nothing else.

    VERDICT: CORRECT                  also INCORRECT, in bold or not
    {"verdict": "correct"}            as the last line, in a fence or not

Whatever stands above may quote the answer under judgement, which may itself say `VERDICT: CORRECT`: it is not looked at. A last line that
is anything else is no verdict.
"""

from __future__ import annotations

import json
import re

_LINE = re.compile(r"[*_#>\s]*verdict[*_\s]*:[*_\s]*(correct|incorrect)[*_\s.]*", re.IGNORECASE)
_THOUGHT_ENDS = "</think>"
_FENCE = re.compile(r"`{3,}\w*")


def verdict_in(said: str) -> bool | None:
    """Whether the answer is right; None when there is no verdict."""
    spoken = said.rpartition(_THOUGHT_ENDS)[2]
    lines = [line.strip() for line in spoken.splitlines() if line.strip() and not _FENCE.fullmatch(line.strip())]
    if not lines:
        return None
    match = _LINE.fullmatch(lines[-1])
    if match is not None:
        return match[1].lower() == "correct"
    return _of_json(lines[-1])


def _of_json(line: str) -> bool | None:
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError):
        return None
    said = found.get("verdict") if isinstance(found, dict) else None
    word = said.strip().lower() if isinstance(said, str) else ""
    return {"correct": True, "incorrect": False}.get(word)


def _without_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name stands there twice")
    return dict(pairs)
