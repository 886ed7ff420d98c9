"""Experts in the record: each row from the call that computed it first, a segment's own, never more than its tokens less one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.blobs import ExpertRows
from pipeline.messages import RoutedExperts
from pipeline.testing.builders import a_turn
from tests.model_answers import a_result
from workers.agent import TrajectoryRecorder
from workers.llm.scripted.experts import made_up_experts

MODEL = RoutedExperts(layers=2, top_k=2, experts=64)


def said(recorder: TrajectoryRecorder, ids: list[int], rows: ExpertRows) -> None:
    recorder.add_call(replace(a_result(ids), experts=rows), a_turn())


def rows_of(recorder: TrajectoryRecorder) -> dict[int, ExpertRows]:
    return dict(recorder.experts())


def test_turns_of_a_segment_become_the_rows_of_all_its_tokens_but_the_last() -> None:
    recorder = TrajectoryRecorder()
    recorder.add_prompt([1, 2, 3])
    said(recorder, [4, 5], made_up_experts([1, 2, 3, 4, 5], MODEL))
    assert recorder.expert_rows == 4
    recorder.add_prompt([1, 2, 3, 4, 5, 6, 7])
    said(recorder, [8], made_up_experts([1, 2, 3, 4, 5, 6, 7, 8], MODEL, recorder.expert_rows))

    assert np.array_equal(rows_of(recorder)[0], made_up_experts([1, 2, 3, 4, 5, 6, 7, 8], MODEL))


def test_a_row_stays_as_the_call_had_it_that_sampled_with_it() -> None:
    """Weights are updated in the middle of a turn, and the rest of it is sampled by others, which compute the prefix anew. The logprobs of
    the first part follow from the first rows."""
    recorder = TrajectoryRecorder()
    recorder.add_prompt([1, 2])
    said(recorder, [3, 4], np.full((3, 2, 2), 1, np.uint8))

    said(recorder, [5], np.full((4, 2, 2), 2, np.uint8))  # an engine that sends all rows again

    assert rows_of(recorder)[0][:, 0, 0].tolist() == [1, 1, 1, 2]


def test_a_new_segment_has_rows_of_its_own_from_its_first_token_on() -> None:
    recorder = TrajectoryRecorder()
    recorder.add_prompt([1, 2, 3])
    said(recorder, [4], made_up_experts([1, 2, 3, 4], MODEL))
    recorder.add_prompt([1, 9, 9], "thinking_dropped")
    assert recorder.expert_rows == 0
    said(recorder, [5], made_up_experts([1, 9, 9, 5], MODEL))

    assert np.array_equal(rows_of(recorder)[0], made_up_experts([1, 2, 3, 4], MODEL))
    assert np.array_equal(rows_of(recorder)[1], made_up_experts([1, 9, 9, 5], MODEL))


def test_what_no_call_read_has_no_rows() -> None:
    recorder = TrajectoryRecorder()
    recorder.add_prompt([1, 2])
    said(recorder, [3], made_up_experts([1, 2, 3], MODEL))
    recorder.add_prompt([1, 2, 3, 4, 5, 6])  # the last observation; the job has no turn left

    assert len(rows_of(recorder)[0]) == 2


def test_the_call_that_goes_on_from_an_aborted_one_brings_its_rows_too() -> None:
    """vLLM says the experts of a request that finished by itself, and nothing of one that was aborted for an update of weights."""
    recorder = TrajectoryRecorder()
    recorder.add_prompt([1, 2])
    recorder.add_call(a_result([3, 4]), a_turn())
    assert (recorder.expert_rows, rows_of(recorder)) == (0, {})
    said(recorder, [5], made_up_experts([1, 2, 3, 4, 5], MODEL, recorder.expert_rows))

    assert np.array_equal(rows_of(recorder)[0], made_up_experts([1, 2, 3, 4, 5], MODEL))


def test_a_segment_that_ends_with_an_aborted_call_has_none() -> None:
    """The job's time was over. Rows of the first turns alone would leave sampled tokens without any."""
    recorder = TrajectoryRecorder()
    recorder.add_prompt([1, 2])
    said(recorder, [3], made_up_experts([1, 2, 3], MODEL))
    recorder.add_prompt([1, 2, 3, 4])
    recorder.add_call(a_result([5, 6]), a_turn())

    assert rows_of(recorder) == {}


def test_a_gap_is_refused() -> None:
    recorder = TrajectoryRecorder()
    recorder.add_prompt([1, 2, 3])

    with pytest.raises(ValueError, match="gap"):
        said(recorder, [4, 5], np.zeros((2, 2, 2), np.uint8))
