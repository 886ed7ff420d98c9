"""SkyRL: rows of a `GeneratorOutput` bit for bit, in both of its forms; with its own types where it is installed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import InvalidRequest
from pipeline.messages import StopReason
from tests.unit.adapters.contracts import check_fields
from tests.unit.adapters.random_rollouts import drawn_rollouts, routed, single_rows
from trainer_client.adapters.demands import complete_groups, finish_reason
from trainer_client.adapters.skyrl import generator_output, output_fields, uids
from trainer_client.batches.experts import experts_of
from trainer_client.batches.rows import BadTrajectory, all_rows, rows_of

ROLLOUTS = drawn_rollouts()
ROWS = list(all_rows(ROLLOUTS))
PER_ROW = ("rewards", "stop_reasons", "trajectory_ids", "trajectory_generation_times", "is_last_step", "env_metrics")


def test_rows_are_those_of_all_trajectories_bit_for_bit() -> None:
    found = output_fields(ROLLOUTS)

    check_fields("skyrl.GeneratorOutput", found)
    assert len(found["response_ids"]) == len(ROWS) > len(ROLLOUTS)
    for at, row in enumerate(ROWS):
        prompt = found["prompt_token_ids"][at]
        assert [*prompt, *found["response_ids"][at]] == row.token_ids.tolist()
        assert len(prompt) == row.prompt_tokens
        assert found["loss_masks"][at] == row.loss_mask[len(prompt) :].tolist()
        np.testing.assert_array_equal(np.array(found["rollout_logprobs"][at], np.float32), row.logprobs[len(prompt) :])
    assert {len(found[name]) for name in PER_ROW} == {len(ROWS)}
    assert uids(ROLLOUTS) == [each["instance_id"] for each in found["trajectory_ids"]] == [row.rollout.group for row in ROWS]


def test_every_trajectory_ends_once_and_has_its_reward_there() -> None:
    """SkyRL takes the statistics of a group from the rows that are last, so a trajectory of several rows counts once."""
    found = output_fields(ROLLOUTS)

    for fields in found["trajectory_ids"]:
        check_fields("skyrl.TrajectoryID", fields)
    keys = [(each["instance_id"], each["repetition_id"]) for each in found["trajectory_ids"]]
    ends = [key for key, last in zip(keys, found["is_last_step"], strict=True) if last]
    assert Counter(ends) == Counter((rollout.group, rollout.member) for rollout in ROLLOUTS)
    assert [reward for reward, last in zip(found["rewards"], found["is_last_step"], strict=True) if last] == [
        rollout.reward for rollout in ROLLOUTS
    ]
    assert sum(map(abs, found["rewards"])) == pytest.approx(sum(abs(rollout.reward) for rollout in ROLLOUTS))


def test_what_sampled_nothing_gives_no_row() -> None:
    empty = replace(ROLLOUTS[0], trajectory=replace(ROLLOUTS[0].trajectory, segments=()))

    assert output_fields([empty])["response_ids"] == []
    with pytest.raises(InvalidRequest, match="no sampled token"):
        output_fields([empty], n=1)


def test_one_row_a_prompt_without_step_wise_trajectories() -> None:
    singles = single_rows()

    found = output_fields(singles, n=1, metrics={"reward/mean": 0.5})

    check_fields("skyrl.GeneratorOutput", found)
    assert len(found["response_ids"]) == len(singles)
    assert found["rewards"] == [rollout.reward for rollout in singles]
    assert (found["is_last_step"], found["trajectory_ids"]) == (None, None)
    assert found["rollout_metrics"] == {"reward/mean": 0.5}


def test_several_segments_and_short_groups_are_refused_or_left_out_where_rows_are_counted() -> None:
    several = replace(next(row.rollout for row in ROWS if row.number), group="one")

    with pytest.raises(InvalidRequest, match="segments: say several='last'"):
        output_fields([several], n=1)
    with pytest.raises(InvalidRequest, match="group one has 1 trajectories: set generator"):
        output_fields([several], n=8, several="last")

    full = complete_groups(ROLLOUTS, n=8)
    assert 0 < len(full) < len(ROLLOUTS)
    assert len(output_fields(full, n=8, several="last")["response_ids"]) == len(full)


def test_a_sampled_token_with_a_logprob_of_nan_is_refused() -> None:
    segment = ROLLOUTS[0].trajectory.segments[0]
    bad = replace(segment, logprobs=np.full(len(segment.logprobs), np.nan, np.float32))

    with pytest.raises(BadTrajectory, match="logprob of nan"):
        output_fields([replace(ROLLOUTS[0], trajectory=replace(ROLLOUTS[0].trajectory, segments=(bad,)))])


def test_reasons_to_stop_are_told_in_the_words_of_engines_where_they_have_one() -> None:
    said = {stop: finish_reason(replace(ROLLOUTS[0], stop=stop.value)) for stop in StopReason}

    assert said[StopReason.FINISHED] == "stop"
    assert said[StopReason.TOKENS] == said[StopReason.CONTEXT] == "length"
    assert said[StopReason.STUCK] == "stuck"


def test_a_row_has_experts_of_all_tokens_but_its_last_in_a_dtype_that_skyrl_takes() -> None:
    """The last token never went through the model. Of more than 256 experts a number needs 16 bits, and SkyRL knows no uint16."""
    for experts, dtype in ((256, np.uint8), (512, np.int16), (2**16, np.int32)):
        rollouts = routed(ROLLOUTS[:12], experts=experts)
        rows = list(all_rows(rollouts))

        found = output_fields(rollouts)["rollout_expert_indices"]

        assert {array.dtype for array in found} == {np.dtype(dtype)}
        for array, row in zip(found, rows, strict=True):
            assert array.shape == (row.n_tokens - 1, 2, 3)
            np.testing.assert_array_equal(array, experts_of(row))
    with pytest.raises(InvalidRequest, match="read without routed experts"):
        output_fields([*rollouts, ROLLOUTS[12]])


def test_with_skyrl_itself() -> None:
    """What its trainers do with an output: its checks, its concatenation, its tensors."""
    pytest.importorskip("skyrl", reason="needs skyrl, which the environment of the tests does not have")
    from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
    from skyrl.train.generators.utils import concatenate_generator_outputs
    from skyrl.train.utils.trainer_utils import validate_generator_output

    half = next(at for at in range(100, len(ROLLOUTS)) if ROLLOUTS[at].group != ROLLOUTS[at - 1].group)
    outputs = [generator_output(ROLLOUTS[:half]), generator_output(ROLLOUTS[half:])]
    both = concatenate_generator_outputs(outputs, step_wise=True)
    validate_generator_output(len(ROLLOUTS), both, step_wise=True)
    singles = single_rows()
    validate_generator_output(len(singles), generator_output(singles, n=1))
    with_experts = routed([rollout for rollout in ROLLOUTS if all(row.n_tokens > 1 for row in rows_of(rollout))])
    validate_generator_output(len(with_experts), generator_output(with_experts), step_wise=True, routes_expected=True)

    sequences, attention, _, _, masks, logprobs, *_ = convert_prompts_responses_to_batch_tensors(
        0,
        both["prompt_token_ids"],
        both["response_ids"],
        [[reward] * len(ids) for reward, ids in zip(both["rewards"], both["response_ids"], strict=True)],
        both["loss_masks"],
        both["rollout_logprobs"],
    )
    for at, row in enumerate(ROWS):
        assert sequences[at][attention[at] == 1].tolist() == row.token_ids.tolist()
        response = slice(-(row.n_tokens - row.prompt_tokens), None)
        assert masks[at].sum() == row.loss_mask.sum()
        np.testing.assert_array_equal(logprobs[at][response], row.logprobs[row.prompt_tokens :])
