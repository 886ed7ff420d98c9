"""The check of finished trajectories sees each way to break promises 5 and 6."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pipeline.messages import Segment, Trajectory, VersionSpan
from pipeline.testing.builders import a_segment, a_trajectory, a_turn
from workers.agent import broken_promises


def a_good_one() -> Trajectory:
    """One segment of eight tokens, the last three sampled in one turn."""
    return replace(a_trajectory(), segments=(a_segment(8, 3),), turns=(a_turn(0, segment=0, start=5, end=8),))


def with_segment(change: Callable[[Segment], Segment]) -> Trajectory:
    """The good one, its segment changed."""
    good = a_good_one()
    return replace(good, segments=(change(good.segments[0]),))


def test_a_good_trajectory_has_no_faults() -> None:
    assert broken_promises(a_good_one()) == []


BROKEN: dict[str, Trajectory] = {
    "different lengths": with_segment(lambda s: replace(s, loss_mask=s.loss_mask[:-1])),
    "loss on a token that was not sampled": with_segment(lambda s: replace(s, loss_mask=np.ones(8, np.uint8))),
    "without a finite logprob": with_segment(lambda s: replace(s, logprobs=np.full(8, np.nan, np.float32))),
    "logprob on a token that was not sampled": with_segment(lambda s: replace(s, logprobs=np.zeros(8, np.float32))),
    "something else than 0 and 1": with_segment(lambda s: replace(s, sampled_mask=s.sampled_mask * 2)),
    "do not cover": with_segment(lambda s: replace(s, versions=(VersionSpan(version="v", start=5, end=7),))),
    "out of order": with_segment(
        lambda s: replace(s, versions=(VersionSpan(version="v", start=7, end=8), VersionSpan(version="v", start=5, end=7)))
    ),
    "does not come before": with_segment(lambda s: replace(s, parent=0)),
    "does not share": replace(a_good_one(), segments=(a_segment(8, 3), a_segment(8, 0, seed=1, began="prompt_diverged", parent=0, fork=3))),
    "does not say why": replace(a_good_one(), segments=(a_segment(8, 3), a_segment(8, 0, parent=0, fork=3))),
    "turns are not exactly": replace(a_good_one(), turns=()),
    "stands nowhere": replace(a_good_one(), turns=(a_turn(0, segment=0, start=5, end=9),)),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_each_fault_is_named(fault: str) -> None:
    assert any(fault in found for found in broken_promises(BROKEN[fault]))
