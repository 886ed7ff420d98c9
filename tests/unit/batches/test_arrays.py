"""Rows, padded and packed: every array says of each token what its segment says, whatever shares a microbatch with it.

Legend for array shapes: T tokens of a row.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.messages import Sampling, Segment, VersionSpan
from pipeline.testing.builders import a_segment, a_trajectory, a_turn
from trainer_client.batches.packed import packed
from trainer_client.batches.padded import padded
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import BadTrajectory, Row, rows_of, turn_ends, version_number

NAMES = ("token_ids", "sampled_mask", "loss_mask", "versions", "temperatures")
LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=6)


def a_rollout(*segments: Segment, **changes: object) -> Rollout:
    rollout = Rollout(
        job="r.e0-i0.0.0", run="r", step=1, group="r.e0-i0.0", prompt_id="e0-i0", draw=0, member=0, group_size=1, trajectory=a_trajectory()
    )
    return replace(rollout, trajectory=replace(rollout.trajectory, segments=segments or (a_segment(),), turns=()), **changes)  # type: ignore[arg-type]


def some_rows(lengths: list[tuple[int, int]]) -> list[Row]:
    segments = [a_segment(tokens, min(tokens, sampled), seed=i) for i, (tokens, sampled) in enumerate(lengths)]
    return rows_of(a_rollout(*segments, advantage=0.5), weight=0.25)


@given(LENGTHS)
def test_a_row_of_a_padded_rectangle_is_that_row(lengths: list[tuple[int, int]]) -> None:
    rows = some_rows(lengths)

    found = padded(rows, pad_id=9, multiple_of=8)

    assert found.token_ids.shape[1] % 8 == 0
    for r, row in enumerate(rows):
        own, rest = (r, slice(row.n_tokens)), (r, slice(row.n_tokens, None))
        for name in NAMES:
            np.testing.assert_array_equal(getattr(found, name)[own], getattr(row, name))
        np.testing.assert_array_equal(found.behaviour_logprobs[own], row.logprobs)
        np.testing.assert_array_equal(found.advantages[own], np.float32(0.5) * row.loss_mask)
        np.testing.assert_array_equal(found.weights[own], np.float32(0.25) * row.loss_mask)
        np.testing.assert_array_equal(found.position_ids[own], np.arange(row.n_tokens))
        assert (found.token_ids[rest] == 9).all()
        assert not found.attention_mask[rest].any()
        assert not found.loss_mask[rest].any()
        assert not found.weights[rest].any()
    assert found.attention_mask.sum() == max(1, found.n_tokens)


@given(LENGTHS)
def test_a_stretch_of_a_packed_line_is_that_row(lengths: list[tuple[int, int]]) -> None:
    rows = some_rows(lengths)

    found = packed(rows, pad_id=9)

    assert found.cu_seqlens.tolist() == [0, *np.cumsum([row.n_tokens for row in rows])] if rows else [0, 1]
    assert found.max_seqlen == max((row.n_tokens for row in rows), default=1)
    for r, row in enumerate(rows):
        at = slice(found.cu_seqlens[r], found.cu_seqlens[r + 1])
        for name in NAMES:
            np.testing.assert_array_equal(getattr(found, name)[at], getattr(row, name))
        np.testing.assert_array_equal(found.behaviour_logprobs[at], row.logprobs)
        np.testing.assert_array_equal(found.position_ids[at], np.arange(row.n_tokens))
        assert (found.row_ids[at] == r).all()


@pytest.mark.parametrize("make", [padded, packed])
def test_a_microbatch_of_nothing_keeps_ranks_in_step_and_trains_nothing(make: object) -> None:
    """One padding token, to which attention is paid (else it is NaN) and which has no loss: never a mask of 1 for what is not there."""
    found = make([], pad_id=3)  # type: ignore[operator]

    assert found.token_ids.ravel().tolist() == [3]
    assert found.rows == ()
    assert found.n_tokens == 0
    assert not found.loss_mask.any()
    assert not found.sampled_mask.any()
    assert not found.weights.any()


def test_a_trajectory_without_a_sampled_token_gives_no_row() -> None:
    assert rows_of(a_rollout(a_segment(8, 0))) == []


def test_a_masked_rollout_keeps_what_was_sampled_and_trains_nothing() -> None:
    segment = a_segment()
    (row,) = rows_of(a_rollout(replace(segment, loss_mask=np.zeros_like(segment.loss_mask)), advantage=2.0), weight=1.0)

    found = padded([row])

    assert found.sampled_mask.sum() == 3
    assert not found.loss_mask.any()
    assert not found.advantages.any()
    assert not found.weights.any()


def test_versions_and_temperatures_stand_on_the_tokens_that_they_sampled() -> None:
    """A row of two turns across an update, with observations in between."""
    mask = np.array([0, 0, 1, 1, 0, 0, 1, 1, 1, 0], np.uint8)
    logprobs = np.where(mask == 1, np.float32(-0.5), np.float32(np.nan))
    spans = (
        VersionSpan(version="2.6", start=2, end=4),
        VersionSpan(version="2.7", start=6, end=8),
        VersionSpan(version="base", start=8, end=9),
    )
    segment = replace(a_segment(10), sampled_mask=mask, loss_mask=mask, logprobs=logprobs, versions=spans)
    turns = (a_turn(0, start=2, end=4), a_turn(1, start=6, end=9, sampling=Sampling(temperature=0.7)))
    rollout = a_rollout(segment)

    (row,) = rows_of(replace(rollout, trajectory=replace(rollout.trajectory, turns=turns)))

    assert row.stretches == ((2, 4), (6, 9))
    assert row.prompt_tokens == 2
    assert row.versions.tolist() == [-1, -1, 6, 6, -1, -1, 7, 7, -1, -1]
    np.testing.assert_allclose(row.temperatures, [1, 1, 1, 1, 1, 1, 0.7, 0.7, 0.7, 1])
    assert turn_ends(row.rollout, 0) == [(0, 3), (1, 8)]


def test_a_span_that_covers_an_observation_says_nothing_of_it() -> None:
    mask = np.array([0, 1, 0, 1], np.uint8)
    logprobs = np.where(mask == 1, np.float32(-1), np.float32(np.nan))
    segment = replace(
        a_segment(4), sampled_mask=mask, loss_mask=mask, logprobs=logprobs, versions=(VersionSpan(version="1.3", start=0, end=4),)
    )

    (row,) = rows_of(a_rollout(segment))

    assert row.versions.tolist() == [-1, 3, -1, 3]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 0.5])
def test_a_logprob_that_is_none_is_refused_by_name(bad: float) -> None:
    segment = a_segment()
    logprobs = segment.logprobs.copy()
    logprobs[6] = bad

    with pytest.raises(BadTrajectory, match=r"r\.e0-i0\.0\.0: token 6 of segment 0"):
        rows_of(a_rollout(replace(segment, logprobs=logprobs)))


def test_a_loss_on_what_nobody_sampled_is_refused() -> None:
    segment = a_segment()

    with pytest.raises(BadTrajectory, match="did not write"):
        rows_of(a_rollout(replace(segment, loss_mask=np.ones_like(segment.loss_mask))))


def test_arrays_of_different_lengths_are_refused() -> None:
    segment = a_segment()

    with pytest.raises(BadTrajectory, match="differ in length"):
        rows_of(a_rollout(replace(segment, logprobs=segment.logprobs[:-1])))


def test_advantages_a_token_stand_where_there_is_a_loss() -> None:
    segment = a_segment(4, 2)

    (row,) = rows_of(a_rollout(segment), advantage=[np.array([9, 9, 0.25, -1], np.float32)])

    assert padded([row]).advantages.tolist() == [[0.0, 0.0, 0.25, -1.0]]
    with pytest.raises(BadTrajectory, match="2 arrays of advantages for 1 segments"):
        rows_of(a_rollout(segment), advantage=[np.zeros(4, np.float32)] * 2)
    with pytest.raises(BadTrajectory, match="shape"):
        rows_of(a_rollout(segment), advantage=[np.zeros(3, np.float32)])


@pytest.mark.parametrize(
    ("label", "number"), [("1.12", 12), ("3", 3), ("", -1), ("base", -1), ("1.x", -1), ("1.٣", -1), ("1.99999999999", -1)]
)
def test_a_version_without_a_number_is_none(label: str, number: int) -> None:
    assert version_number(label) == number


def test_rewards_a_turn_pass_through_as_the_handler_gave_them() -> None:
    rollout = a_rollout()

    def with_extra(**extra: object) -> Rollout:
        return replace(rollout, trajectory=replace(rollout.trajectory, turns=(a_turn(0), a_turn(1)), extra=extra))

    assert with_extra().turn_rewards == ()
    assert with_extra(turn_rewards=[0.5, None]).turn_rewards == (0.5, None)
    for wrong in ([0.5], "0.5", [0.5, "1"], [float("nan"), 0.0], [True, 0.0]):
        with pytest.raises(ValueError, match="turn_rewards"):
            _ = with_extra(turn_rewards=wrong).turn_rewards
