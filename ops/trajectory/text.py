"""A trajectory as lines for a terminal: the conversation, and its tokens with their mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pipeline.messages import ChatMessage, Trajectory

LONGEST_MESSAGE = 900
CUT = " […] "
ROW = 64
"""Characters of the token strip in a row."""
ROWS = 6


def conversation(messages: Sequence[ChatMessage], *, longest: int = LONGEST_MESSAGE) -> list[tuple[str, str]]:
    """Role and text of each line, long ones cut in the middle."""
    return [(message.role, _cut(message.content.strip(), longest)) for message in messages]


def token_strip(trajectory: Trajectory) -> list[str]:
    """One row a stretch of tokens: `█` sampled by the model, `·` prompt, tool or template; scaled to the width."""
    rows = []
    for number, segment in enumerate(trajectory.segments):
        mask = segment.sampled_mask
        a_cell = max(1, -(-len(mask) // (ROW * ROWS)))
        cells = [float(np.mean(mask[at : at + a_cell])) for at in range(0, len(mask), a_cell)]
        strip = "".join("█" if share >= 0.5 else "▒" if share > 0 else "·" for share in cells)
        rows.append(
            f"segment {number}: {len(mask):,} tokens, {int(mask.sum()):,} sampled" + (f" (a cell is {a_cell} tokens)" if a_cell > 1 else "")
        )
        rows += [strip[at : at + ROW] for at in range(0, len(strip), ROW)]
    return rows


def first_tokens(trajectory: Trajectory, decode: Callable[[Sequence[int]], str], count: int) -> list[tuple[str, int, float]]:
    """Text, mask and logprob of the first sampled tokens and the few before them."""
    if not trajectory.segments:
        return []
    segment = trajectory.segments[0]
    sampled = np.flatnonzero(segment.sampled_mask)
    if not len(sampled):
        return []
    start = max(0, int(sampled[0]) - 3)
    return [
        (decode([int(segment.token_ids[at])]), int(segment.sampled_mask[at]), float(segment.logprobs[at]))
        for at in range(start, min(len(segment.token_ids), start + count))
    ]


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = (longest - len(CUT)) // 2
    return text[:half] + CUT + text[-half:]
