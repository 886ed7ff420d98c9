"""Which recorded logprobs a server can recompute, how each is asked for, and why the others cannot be, as pure functions.

The recomputed logprob must be of the distribution that the recorded one is of:

    the turn's mode   of which distribution its logprobs are     how it is asked for (`scoring_wire.py`)
    raw               the model's own                            as a prompt's tokens, one call a segment
    scaled            after temperature                          one call a token with that temperature, in mode scaled or processed
    processed         after temperature, top-p, top-k, min-p     one call a token with all of them, in mode processed

At temperature 1 and with nothing cut all three are the model's own, and so they are when sampling was greedy. SGLang is asked one token a
call throughout.

Not comparable: tokens of spans whose version is not the one that the server holds; penalties, raw mode apart, since they depend on what was
sampled in the call; a distribution that the server's mode does not show; the last token of a context that is full; what stands behind an
image, since images are not sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.messages import Sampling, Trajectory, Turn
from workers.llm.backend import Caps

AT_ONCE, ONE_BY_ONE = "at once", "one by one"
PLAIN = Sampling(max_tokens=1)
"""Leaves the model's distribution as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked for one trajectory. A place is an index into the ids of its segment."""

    at_once: Mapping[int, Sequence[int]]
    """Places by segment, ascending: asked for as a prompt's tokens."""
    one_by_one: Sequence[tuple[int, int, Sampling]]
    """Segment, place, and the sampling to ask with."""
    skipped: Mapping[str, int]
    """Sampled tokens that are not comparable, by why."""


def plan_of(trajectory: Trajectory, caps: Caps, version: str) -> Plan:
    """What is asked of a server that holds the weights labelled `version`."""
    at_once: dict[int, list[int]] = {}
    one_by_one: list[tuple[int, int, Sampling]] = []
    skipped: Counter[str] = Counter()
    for turn in trajectory.turns:
        if turn.end == turn.start:
            continue
        way, sampling = _way(turn, caps)
        comparable = np.zeros(turn.end, dtype=bool)
        segment = trajectory.segments[turn.segment]
        if segment.images and segment.images[0].start < turn.start:
            skipped["behind an image, and those are not sent"] += turn.end - turn.start
            continue
        for span in segment.versions:
            if holds(version, span.version):
                comparable[span.start : span.end] = True
        for place in range(turn.start, turn.end):
            if not comparable[place]:
                skipped["another version"] += 1
            elif place + (way == AT_ONCE) >= caps.max_model_len:
                skipped["the context is full"] += 1
            elif way == AT_ONCE:
                at_once.setdefault(turn.segment, []).append(place)
            elif way == ONE_BY_ONE:
                one_by_one.append((turn.segment, place, sampling))
            else:
                skipped[way] += 1
    return Plan(at_once=at_once, one_by_one=one_by_one, skipped=skipped)


def holds(label: str, version: str) -> bool:
    """Whether the label of an engine's weights is that version; an engine's label may have its run in front, as in `swe-7b/1.5`."""
    return bool(version) and (label == version or label.endswith(f"/{version}"))


def _way(turn: Turn, caps: Caps) -> tuple[str, Sampling]:
    """How the logprobs of a turn are asked for, or why they cannot be; and the sampling to ask with."""
    mode, sampling = turn.logprobs_mode, replace(turn.sampling, max_tokens=1)
    if mode == "raw":
        sampling = PLAIN
    elif sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0:
        return f"{mode} with penalties", sampling
    elif sampling.temperature == 0:
        sampling = PLAIN
    elif mode == "scaled":
        sampling = replace(PLAIN, temperature=sampling.temperature)
    if sampling == PLAIN:
        return (ONE_BY_ONE if caps.endpoint == "sglang" else AT_ONCE), sampling
    is_cut = sampling != replace(PLAIN, temperature=sampling.temperature)
    if caps.logprobs_mode == "processed" or (caps.logprobs_mode == "scaled" and not is_cut):
        return ONE_BY_ONE, sampling
    return f"{mode}, and the server says {caps.logprobs_mode} ones", sampling
