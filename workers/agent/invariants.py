"""Promises 5 and 6, checked on a finished trajectory: what leaves RUN is looked at once more before it is believed."""

from __future__ import annotations

import numpy as np

from pipeline.messages import Segment, Trajectory


def broken_promises(trajectory: Trajectory) -> list[str]:
    """What is wrong with a trajectory, in words; empty when nothing is."""
    faults = []
    for index, segment in enumerate(trajectory.segments):
        faults += [f"segment {index}: {fault}" for fault in _faults_of(segment)]
        if segment.parent >= index or segment.parent < -1:
            faults.append(f"segment {index}: parent {segment.parent} does not come before it")
        elif segment.parent >= 0:
            parent = trajectory.segments[segment.parent].token_ids
            shared = segment.fork
            if shared > min(len(parent), len(segment.token_ids)) or (parent[:shared] != segment.token_ids[:shared]).any():
                faults.append(f"segment {index}: does not share {shared} tokens with segment {segment.parent}")
            if not segment.began or segment.began == "start":
                faults.append(f"segment {index}: does not say why it began")
    return faults + _turn_faults(trajectory)


def _faults_of(segment: Segment) -> list[str]:
    n_tokens = len(segment.token_ids)
    lengths = {len(segment.sampled_mask), len(segment.loss_mask), len(segment.logprobs)}
    if lengths != {n_tokens}:
        return [f"arrays of different lengths: {n_tokens} ids, others {sorted(lengths)}"]
    faults = []
    sampled = segment.sampled_mask == 1
    if not np.isin(segment.sampled_mask, (0, 1)).all() or not np.isin(segment.loss_mask, (0, 1)).all():
        faults.append("a mask holds something else than 0 and 1")
    if (segment.loss_mask > segment.sampled_mask).any():
        faults.append("loss on a token that was not sampled")
    if not np.isfinite(segment.logprobs[sampled]).all():
        faults.append("a sampled token without a finite logprob")
    if not np.isnan(segment.logprobs[~sampled]).all():
        faults.append("a logprob on a token that was not sampled")
    covered = np.zeros(n_tokens, dtype=np.int64)
    last = 0
    for span in segment.versions:
        if not last <= span.start < span.end <= n_tokens:
            faults.append(f"version spans out of order at {span.start}")
            break
        covered[span.start : span.end] += 1
        last = span.end
    if (covered != sampled).any():
        faults.append("version spans do not cover exactly the sampled tokens")
    return faults


def _turn_faults(trajectory: Trajectory) -> list[str]:
    claimed = [np.zeros(len(segment.token_ids), dtype=np.int64) for segment in trajectory.segments]
    for turn in trajectory.turns:
        if not 0 <= turn.segment < len(claimed) or not 0 <= turn.start <= turn.end <= len(claimed[turn.segment]):
            return [f"turn {turn.index} stands nowhere"]
        claimed[turn.segment][turn.start : turn.end] += 1
    return [
        f"segment {index}: its turns are not exactly its sampled tokens"
        for index, (segment, claims) in enumerate(zip(trajectory.segments, claimed, strict=True))
        if len(segment.sampled_mask) == len(claims) and (segment.sampled_mask != claims).any()
    ]
