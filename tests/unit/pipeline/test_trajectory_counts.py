"""Counts of a trajectory: what is counted, and the field that carries it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import TrajectoryCounts
from pipeline.testing.builders import a_segment, a_trajectory, a_turn
from pipeline.trajectory_counts import counts_of, counts_text, read_counts


def test_all_turns_and_segments_are_counted() -> None:
    segments = (a_segment(8, seed=1), a_segment(8, seed=2))
    turns = (
        a_turn(0, tool_calls=2, tool_errors=1, tools_s=0.5, cached_tokens=4),
        a_turn(1, segment=1, tool_calls=1, cached_tokens=-1),
    )

    counts = counts_of(a_trajectory(segments=segments, turns=turns))

    assert (counts.tool_calls, counts.tool_errors, counts.model_s, counts.tools_s) == (3, 1, 0.5, 0.5)
    assert (counts.prompt_tokens, counts.cached_tokens) == (5, 4), "a call whose server does not say is in neither"
    logprobs = np.concatenate([segment.logprobs for segment in segments]).astype(np.float64)
    assert counts.neg_logprob == pytest.approx(-np.nansum(logprobs))


def test_where_no_server_says_what_it_had_cached_nothing_is_known() -> None:
    counts = counts_of(a_trajectory())

    assert (counts.prompt_tokens, counts.cached_tokens) == (None, None)


@given(
    st.builds(
        TrajectoryCounts,
        tool_calls=st.integers(0, 10**6),
        tool_errors=st.integers(0, 10**6),
        prompt_tokens=st.none() | st.integers(0, 10**12),
        cached_tokens=st.none() | st.integers(0, 10**12),
        neg_logprob=st.none() | st.integers(0, 10**9).map(lambda n: n / 1000),
        model_s=st.integers(0, 10**8).map(lambda n: n / 1000),
        tools_s=st.integers(0, 10**8).map(lambda n: n / 1000),
    )
)
def test_the_field_brings_back_what_it_was_made_of(counts: TrajectoryCounts) -> None:
    assert read_counts(counts_text(counts)) == counts


def test_what_is_no_number_is_left_out() -> None:
    assert counts_text(TrajectoryCounts(neg_logprob=float("nan"), model_s=float("inf"))) == "calls:0 errors:0 tools:0.000"
    assert counts_text(None) == ""
