"""What a trajectory counts up to, as one field of its job's record: `calls:3 errors:1 prompt:410 cached:120 nll:81.3 model:2.1 tools:0.4`.

So the numbers of a step (`Step.metrics`) need no trajectory, of which each rank of a trainer reads its own alone. Words are only added and
never re-meant; one that is not known is passed over, and what cannot be read counts as absent: nothing decides on these figures.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from pipeline.messages import Trajectory, TrajectoryCounts

_WORD = re.compile(r"([a-z]{1,16}):([0-9]{1,15}(?:\.[0-9]{1,9})?)")
_NAMES = {
    "calls": "tool_calls",
    "errors": "tool_errors",
    "prompt": "prompt_tokens",
    "cached": "cached_tokens",
    "nll": "neg_logprob",
    "model": "model_s",
    "tools": "tools_s",
}
_WHOLE = ("calls", "errors", "prompt", "cached")


def counts_of(trajectory: Trajectory) -> TrajectoryCounts:
    """Counts a trajectory up."""
    turns = trajectory.turns
    sampled = [segment.logprobs[segment.sampled_mask == 1] for segment in trajectory.segments]
    says = [turn.cached_tokens for turn in turns if turn.cached_tokens >= 0]
    return TrajectoryCounts(
        tool_calls=sum(turn.tool_calls for turn in turns),
        tool_errors=sum(turn.tool_errors for turn in turns),
        prompt_tokens=sum(turn.start for turn in turns if turn.cached_tokens >= 0) if says else None,
        cached_tokens=sum(says) if says else None,
        neg_logprob=-float(sum(part.sum(dtype=np.float64) for part in sampled)),
        model_s=sum(turn.model_s for turn in turns),
        tools_s=sum(turn.tools_s for turn in turns),
    )


def counts_text(counts: TrajectoryCounts | None) -> str:
    """As the field; what is None or no finite number is left out."""
    if counts is None:
        return ""
    found = {word: getattr(counts, name) for word, name in _NAMES.items()}
    return " ".join(
        f"{word}:{value}" if word in _WHOLE else f"{word}:{max(0.0, value):.3f}"
        for word, value in found.items()
        if value is not None and math.isfinite(value)
    )


def read_counts(text: str) -> TrajectoryCounts | None:
    """The counts in that field; None when there are none."""
    found: dict[str, Any] = {}
    for word in text.split(" "):
        match = _WORD.fullmatch(word)
        if match is None or match[1] not in _NAMES:
            continue
        if match[1] not in _WHOLE:
            found[_NAMES[match[1]]] = float(match[2])
        elif match[2].isdigit():
            found[_NAMES[match[1]]] = int(match[2])
    return TrajectoryCounts(**found) if found else None


__all__ = ["counts_of", "counts_text", "read_counts"]
