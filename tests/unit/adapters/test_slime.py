"""slime: samples bit for bit, with one id a trajectory, against the fields that were read in its source."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.errors import InvalidRequest
from tests.unit.adapters.contracts import check_fields
from tests.unit.adapters.random_rollouts import drawn_rollouts, routed, single_rows
from trainer_client.adapters.demands import complete_groups
from trainer_client.adapters.slime import sample_fields, samples, trained, trained_fields
from trainer_client.batches.experts import experts_of
from trainer_client.batches.rows import BadTrajectory, Row, all_rows, rows_of

ROLLOUTS = drawn_rollouts()
ROWS = list(all_rows(ROLLOUTS))
TRAINED = [row for row in ROWS if row.loss_mask[1:].any()]


def test_masks_and_logprobs_cover_the_response_alone_bit_for_bit() -> None:
    singles = single_rows()

    found = sample_fields(singles, n=1)

    assert [len(group) for group in found] == [1] * len(singles)
    for (fields,), rollout in zip(found, singles, strict=True):
        (row,) = rows_of(rollout)
        _is_row(fields, row)
        assert fields["reward"] == rollout.reward


def test_samples_of_a_trajectory_have_one_id_and_its_advantage() -> None:
    """slime's loss counts a rollout once by that id, however many samples it gave."""
    found = trained_fields(ROLLOUTS)

    flat = [fields for group in found for fields in group]
    assert len(flat) == len(TRAINED) < len(ROWS)
    ids = defaultdict(set)
    for index, (fields, row) in enumerate(zip(flat, TRAINED, strict=True)):
        _is_row(fields, row)
        assert (fields["index"], fields["reward"]) == (index, row.rollout.advantage)
        assert fields["metadata"]["reward"] == row.rollout.reward
        ids[row.rollout.job].add(fields["rollout_id"])
    assert {len(each) for each in ids.values()} == {1}
    assert len(set.union(*ids.values())) == len(ids)
    assert [fields["group_index"] for fields in flat] == sorted(fields["group_index"] for fields in flat)
    assert len(found) == len({row.rollout.group for row in TRAINED})


def test_a_response_begins_behind_a_token() -> None:
    """slime predicts the first token of a response from the one before it, and takes logits from there: of an empty prompt none."""
    bare = [row for row in TRAINED if row.prompt_tokens == 0]
    found = {(row.rollout.job, row.number): fields for row, fields in zip(TRAINED, _flat(trained_fields(ROLLOUTS)), strict=True)}

    assert bare
    for row in bare:
        assert found[row.rollout.job, row.number]["response_length"] == row.n_tokens - 1


def test_a_sample_has_experts_of_all_tokens_but_its_last() -> None:
    rollouts = routed(ROLLOUTS[:12])
    rows = [row for row in all_rows(rollouts) if row.loss_mask[1:].any()]

    for fields, row in zip(_flat(trained_fields(rollouts)), rows, strict=True):
        assert fields["rollout_routed_experts"].dtype == np.int32
        np.testing.assert_array_equal(fields["rollout_routed_experts"], experts_of(row))
    with pytest.raises(InvalidRequest, match="read without routed experts"):
        trained_fields([*rollouts, *ROLLOUTS[12:20]])


def test_a_tokenizer_gives_the_text_of_responses() -> None:
    ((fields,),) = sample_fields(single_rows()[:1], n=1, decode=lambda ids: f"{len(ids)} tokens")

    assert fields["response"] == f"{fields['response_length']} tokens"


def test_short_groups_and_several_segments_and_nothing_sampled_are_refused_where_samples_are_counted() -> None:
    """Where the number of samples is not what slime expects it takes all of a step for one group, without a word."""
    several = next(row.rollout for row in ROWS if row.number)
    empty = replace(ROLLOUTS[0], trajectory=replace(ROLLOUTS[0].trajectory, segments=()))

    for rollouts, why in (([several], "segments: say several='last'"), ([empty], "no sampled token"), (single_rows()[:1], "1 traj")):
        with pytest.raises(InvalidRequest, match=why):
            sample_fields(rollouts, n=8)
    full = complete_groups([*ROLLOUTS, empty], n=8)
    assert {len(group) for group in sample_fields(full, n=8, several="last")} == {8}
    assert trained_fields([empty]) == []


def test_what_has_no_advantage_or_a_logprob_of_nan_is_refused() -> None:
    segment = ROLLOUTS[0].trajectory.segments[0]
    bad = replace(segment, logprobs=np.full(len(segment.logprobs), np.nan, np.float32))
    known = next(row.rollout for row in TRAINED)

    with pytest.raises(InvalidRequest, match="GRPO"):
        trained_fields([replace(known, advantage=None)])
    with pytest.raises(BadTrajectory, match="logprob of nan"):
        trained_fields([replace(ROLLOUTS[0], trajectory=replace(ROLLOUTS[0].trajectory, segments=(bad,)))])


def test_with_slime_itself() -> None:
    pytest.importorskip("slime", reason="needs slime, which the environment of the tests does not have")

    assert len(_flat(trained(ROLLOUTS))) == len(TRAINED)
    assert len(samples(single_rows(), n=1)) == len(single_rows())


def _flat(groups: list[list[Any]]) -> list[Any]:
    return [each for group in groups for each in group]


def _is_row(fields: dict[str, Any], row: Row) -> None:
    check_fields("slime.Sample", fields)
    length = fields["response_length"]
    at = row.n_tokens - length
    assert at == max(1, row.prompt_tokens)
    assert fields["tokens"] == row.token_ids.tolist()
    assert fields["loss_mask"] == row.loss_mask[at:].tolist()
    assert len(fields["rollout_log_probs"]) == length
    np.testing.assert_array_equal(np.array(fields["rollout_log_probs"], np.float32), row.logprobs[at:])
    assert fields["status"] == ("truncated" if row.rollout.stop == "tokens" else "completed")
