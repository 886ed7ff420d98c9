"""Sizes of segments as a record holds them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import SegmentSize
from pipeline.segment_sizes import MAX_SEGMENTS, read_sizes, sizes_of, sizes_text
from pipeline.testing import a_segment, a_trajectory


def test_they_are_counted_by_segment_and_the_loss_by_its_own_mask() -> None:
    masked = a_segment(tokens=9, sampled=4, loss_mask=np.array([0, 0, 0, 0, 0, 1, 0, 0, 1], np.uint8))
    trajectory = a_trajectory(segments=(a_segment(tokens=24, sampled=7), masked))

    sizes = sizes_of(trajectory)

    assert sizes == (SegmentSize(tokens=24, loss_tokens=7), SegmentSize(tokens=9, loss_tokens=2))
    assert sizes_text(sizes) == "24/7 9/2"
    assert sizes_text(sizes_of(a_trajectory(segments=()))) == ""


@given(st.lists(st.integers(0, 999_999_999).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=MAX_SEGMENTS + 3))
def test_what_was_written_is_read_or_is_unknown(pairs: list[tuple[int, int]]) -> None:
    sizes = tuple(SegmentSize(tokens=tokens, loss_tokens=loss) for tokens, loss in pairs)

    assert read_sizes(sizes_text(sizes)) == (sizes if len(sizes) <= MAX_SEGMENTS else ())
