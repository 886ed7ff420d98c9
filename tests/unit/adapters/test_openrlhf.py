"""OpenRLHF: experiences whose masks and logprobs are shifted by one, bit for bit; with its own types where it is installed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.errors import InvalidRequest
from tests.unit.adapters.contracts import check_fields
from tests.unit.adapters.random_rollouts import drawn_rollouts, single_rows
from trainer_client.adapters.demands import complete_groups
from trainer_client.adapters.openrlhf import executor_output, experience_fields, experiences, trained, trained_fields
from trainer_client.batches.rows import BadTrajectory, Row, all_rows, rows_of

ROLLOUTS = drawn_rollouts()
ROWS = list(all_rows(ROLLOUTS))
TRAINED = [row for row in ROWS if row.loss_mask[1:].any()]


def test_masks_and_logprobs_are_shifted_by_one_bit_for_bit() -> None:
    """Entry t of what speaks of actions speaks of token t + 1, and there is one entry less than tokens."""
    singles = single_rows()

    found = list(experience_fields(singles, n=1))

    assert len(found) == len(singles) > 50
    for fields, rollout in zip(found, singles, strict=True):
        (row,) = rows_of(rollout)
        _is_row(fields, row)
        assert fields["rewards"] == np.float32(rollout.reward)
        assert fields["labels"] == [rollout.data["answer"]]
        assert fields["prompts"] == ["What is it?"]


def test_rows_with_advantages_are_all_that_is_trained_of_any_trajectory() -> None:
    """Several segments and short groups are as good as any: OpenRLHF's own statistics are not asked."""
    found = list(trained_fields(ROLLOUTS))

    assert len(found) == len(TRAINED) < len(ROWS)
    for fields, row in zip(found, TRAINED, strict=True):
        _is_row(fields, row)
        for name in ("advantages", "returns"):
            assert fields[name].dtype == np.float32
            np.testing.assert_array_equal(fields[name][0], row.loss_mask[1:] * np.float32(row.rollout.advantage or 0.0))


def test_every_experience_charts_the_same_numbers() -> None:
    """OpenRLHF stacks what the first one has: a component that one trajectory lacks would end the step."""
    first, second = (replace(rollout, components={name: 1.0}) for rollout, name in zip(single_rows(), ("a", "b"), strict=False))

    found = [fields["info"] for fields in experience_fields([first, second], n=1)]

    assert found[0].keys() == found[1].keys() == {"response_clip_ratio", "reward", "score", "a", "b"}
    assert np.isnan(found[0]["b"]).all()


def test_short_groups_and_several_segments_and_nothing_sampled_are_refused_where_rows_are_counted() -> None:
    """Rewards are reshaped to rows of n: 7 of one group and 1 of the next would be compared without a word."""
    several = next(row.rollout for row in ROWS if row.number)
    empty = replace(ROLLOUTS[0], trajectory=replace(ROLLOUTS[0].trajectory, segments=()))

    for rollouts, why in (
        ([several], "segments: say several='last'"),
        ([empty], "no sampled token"),
        (single_rows()[:1], "1 trajectories"),
    ):
        with pytest.raises(InvalidRequest, match=why):
            list(experience_fields(rollouts, n=8))
    full = complete_groups([*ROLLOUTS, empty], n=8)
    assert len(list(experience_fields(full, n=8, several="last"))) == len(full) > 0
    assert list(trained_fields([empty])) == []


def test_an_executor_s_output_is_told_by_token() -> None:
    for rollout in single_rows():
        (row,) = rows_of(rollout)
        found = executor_output(rollout)
        check_fields("openrlhf.executor", found)
        mask = np.zeros(row.n_tokens, np.uint8)
        for start, end in found["action_ranges"]:
            mask[start:end] = 1
        assert found["observation_tokens"] == row.token_ids.tolist()
        np.testing.assert_array_equal(mask, row.loss_mask)
        np.testing.assert_array_equal(np.array(found["rollout_log_probs"], np.float32), row.logprobs)


def test_what_has_no_advantage_or_a_logprob_of_nan_is_refused() -> None:
    segment = ROLLOUTS[0].trajectory.segments[0]
    bad = replace(segment, logprobs=np.full(len(segment.logprobs), np.nan, np.float32))

    with pytest.raises(InvalidRequest, match="GRPO"):
        list(trained_fields([replace(ROLLOUTS[0], advantage=None)]))
    with pytest.raises(BadTrajectory, match="logprob of nan"):
        list(trained_fields([replace(ROLLOUTS[0], trajectory=replace(ROLLOUTS[0].trajectory, segments=(bad,)))]))


def test_with_openrlhf_itself() -> None:
    """Its own batching, splitting and padding of what it is given, there and back."""
    pytest.importorskip("openrlhf", reason="needs openrlhf, which the environment of the tests does not have")
    from openrlhf.trainer.ppo_utils.experience import Experience, make_experience_batch, remove_padding_in_sequences, split_experience_batch

    def flat(experience: Any) -> Any:
        return split_experience_batch(experience)[0]

    batch = make_experience_batch([flat(experience) for experience in trained(ROLLOUTS)])
    items = split_experience_batch(batch)

    assert batch.sequences.shape[0] == len(TRAINED)
    assert batch.advantages.shape == batch.action_mask.shape == batch.rollout_log_probs.shape
    for item, row in zip(items, TRAINED, strict=True):
        tokens = int(item.attention_mask.sum())
        assert item.sequences[:tokens].tolist() == row.token_ids.tolist()
        np.testing.assert_array_equal(item.action_mask[: tokens - 1], row.loss_mask[1:])
        np.testing.assert_array_equal(item.rollout_log_probs[: tokens - 1], row.logprobs[1:])
        np.testing.assert_array_equal(item.advantages[: tokens - 1], row.advantages[1:])
    assert len(remove_padding_in_sequences(items)[0].sequences) == TRAINED[0].n_tokens
    singles = single_rows()
    whole = Experience.concat_experiences(experiences(singles, n=1), pad_token_id=0)
    assert whole.rewards.tolist() == [pytest.approx(rollout.reward) for rollout in singles]


def _is_row(fields: dict[str, Any], row: Row) -> None:
    check_fields("openrlhf.Experience", fields)
    tokens = row.n_tokens
    assert {name: (fields[name].dtype, fields[name].shape) for name in ("sequences", "attention_mask", "action_mask")} == {
        "sequences": (np.int64, (1, tokens)),
        "attention_mask": (np.int64, (1, tokens)),
        "action_mask": (np.int64, (1, tokens - 1)),
    }
    np.testing.assert_array_equal(fields["sequences"][0], row.token_ids)
    np.testing.assert_array_equal(fields["action_mask"][0], row.loss_mask[1:])
    np.testing.assert_array_equal(fields["rollout_log_probs"][0], row.logprobs[1:])
    assert fields["rollout_log_probs"].dtype == np.float32
    trained = np.flatnonzero(row.loss_mask[1:])
    assert fields["response_length"] == (trained[-1] - trained[0] + 1 if len(trained) else 0)
