"""TRL: every token, mask and logprob of a rollout is in what TRL gets, and its types have the fields that they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import InvalidRequest
from tests.unit.adapters.contracts import check_fields, check_methods
from tests.unit.adapters.random_rollouts import drawn_rollouts
from trainer_client.adapters.trl import completions, group_number, reward, sample_fields, samples
from trainer_client.adapters.trl_worker import TrlWeights, TrlWorker
from trainer_client.batches.rows import all_rows, rows_of

ROLLOUTS = drawn_rollouts()


def test_samples_are_the_rows_of_all_trajectories_bit_for_bit() -> None:
    """A trajectory of several segments is several samples with one advantage; a group short of members is as good as any."""
    rows = list(all_rows(ROLLOUTS))

    found = list(samples(ROLLOUTS))

    assert len(found) == len(rows) > len(ROLLOUTS)
    for sample, row in zip(found, rows, strict=True):
        np.testing.assert_array_equal(sample.input_ids, row.token_ids)
        np.testing.assert_array_equal(sample.completion_mask, row.loss_mask)
        trained = row.loss_mask == 1
        np.testing.assert_array_equal(sample.old_log_probs[trained], row.segment.logprobs[trained])
        assert not sample.old_log_probs[~trained].any(), "TRL divides by what stands on tokens that it does not train"
        assert (sample.input_ids.dtype, sample.completion_mask.dtype, sample.old_log_probs.dtype) == (np.int64, np.int64, np.float32)
        assert sample.advantage == row.rollout.advantage
        assert sample.group_id == group_number(row.rollout.prompt_id)
        assert sample.model_version == row.versions[row.versions >= 0].min(), "as old as its oldest token"


def test_samples_have_the_fields_of_trl() -> None:
    for fields in sample_fields(ROLLOUTS):
        check_fields("trl.RolloutSample", fields)


def test_worker_and_weights_have_the_methods_of_trl() -> None:
    check_methods("trl.RolloutWorkerProtocol", TrlWorker)
    check_methods("trl.WeightTransferProtocol", TrlWeights)


def test_versions_are_told_in_trl_s_own_numbers() -> None:
    found = {sample.model_version for sample in samples(ROLLOUTS, versions={4: 40, 5: 50})}

    assert found == {40, 50}


def test_completions_are_one_row_a_prompt_bit_for_bit() -> None:
    singles = [rollout for rollout in ROLLOUTS if len(rows_of(rollout)) == 1]

    found = completions(singles)

    for at, rollout in enumerate(singles):
        (row,) = rows_of(rollout)
        prompt, completion = ids(found["prompt_ids"][at]), ids(found["completion_ids"][at])
        assert [*prompt, *completion] == row.token_ids.tolist()
        assert len(prompt) == row.prompt_tokens
        assert ids(found["env_mask"][at]) == row.loss_mask[row.prompt_tokens :].tolist()
        np.testing.assert_array_equal(np.array(found["logprobs"][at], np.float32), row.logprobs[row.prompt_tokens :])
        assert found["reward"][at] == rollout.reward
        assert found["reward_format"][at] == rollout.components["format"]
    assert len({len(column) for column in found.values()}) == 1
    assert reward([], reward=[1.0, None], prompts=[]) == [1.0, None], "as TRL calls it"


def test_a_trajectory_of_several_segments_is_refused_or_trained_by_its_last() -> None:
    several = next(rollout for rollout in ROLLOUTS if len(rows_of(rollout)) > 1)

    with pytest.raises(InvalidRequest, match="several='last'"):
        completions([several])
    found = completions([several], several="last")

    assert [*ids(found["prompt_ids"][0]), *ids(found["completion_ids"][0])] == rows_of(several)[-1].token_ids.tolist()


def test_a_rollout_that_sampled_nothing_has_no_token_and_no_reward() -> None:
    """A made-up token with mask 1 would be trained; a reward of 0 would pull the mean of its group."""
    empty = replace(ROLLOUTS[0], trajectory=replace(ROLLOUTS[0].trajectory, segments=()))

    found = completions([empty])

    assert (found["completion_ids"], found["env_mask"], found["reward"]) == ([[]], [[]], [None])
    assert list(samples([empty])) == []


def test_samples_without_advantages_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="GRPO"):
        list(samples([replace(ROLLOUTS[0], advantage=None)]))


def test_groups_have_numbers_of_their_own() -> None:
    prompts = {rollout.prompt_id for rollout in ROLLOUTS}

    assert len({group_number(prompt) for prompt in prompts}) == len(prompts)


def ids(column: object) -> Sequence[int]:
    assert isinstance(column, list)
    return column


def test_a_rollout_is_what_it_says() -> None:
    """The drawn rollouts have what these tests are about."""
    assert any(rollout.group_size < 8 for rollout in ROLLOUTS)
    assert any(not row.loss_mask.any() for row in all_rows(ROLLOUTS))
