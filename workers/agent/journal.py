"""A trajectory from its journal: what is known of an attempt whose end did not come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipeline.messages import JournalEntry, Segment, StopReason, Trajectory


def trajectory_of(entries: Sequence[JournalEntry], stop: StopReason) -> Trajectory:
    """The trajectory that finished turns add up to, in order.

    Raises:
        ValueError: the entries are not turns 0, 1, 2, ...
    """
    if [entry.turn.index for entry in entries] != list(range(len(entries))):
        raise ValueError(f"journal has turns {[entry.turn.index for entry in entries]}, expected 0 to {len(entries) - 1}")
    by_segment: list[list[JournalEntry]] = []
    for entry in entries:
        if entry.began or not by_segment:
            by_segment.append([])
        by_segment[-1].append(entry)
    return Trajectory(
        segments=tuple(_segment(segment) for segment in by_segment),
        turns=tuple(entry.turn for entry in entries),
        stop=stop,
        messages=tuple(message for entry in entries for message in entry.messages),
        answer=next((m.content for entry in reversed(entries) for m in reversed(entry.messages) if m.role == "assistant"), ""),
    )


def _segment(entries: Sequence[JournalEntry]) -> Segment:
    sampled_mask = np.concatenate([entry.sampled_mask for entry in entries])
    return Segment(
        token_ids=np.concatenate([entry.token_ids for entry in entries]),
        sampled_mask=sampled_mask,
        loss_mask=sampled_mask,
        logprobs=np.concatenate([entry.logprobs for entry in entries]),
        versions=tuple(span for entry in entries for span in entry.versions),
        began=entries[0].began or "start",
    )
