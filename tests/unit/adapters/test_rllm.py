"""rLLM: steps that rebuild what is trained bit for bit, against the fields that were read in its source."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.adapters.contracts import check_fields
from tests.unit.adapters.random_rollouts import drawn_rollouts
from trainer_client.adapters.rllm import episode_fields, episodes
from trainer_client.batches.rows import BadTrajectory, rows_of

ROLLOUTS = drawn_rollouts()


def test_steps_are_what_is_trained_of_all_segments_bit_for_bit() -> None:
    found = episode_fields(ROLLOUTS)

    assert len(found) == len(ROLLOUTS)
    for fields, rollout in zip(found, ROLLOUTS, strict=True):
        check_fields("rllm.Episode", fields)
        (trajectory,) = fields["trajectories"]
        check_fields("rllm.Trajectory", trajectory)
        rows = {row.number: row for row in rows_of(rollout)}
        masks = {number: np.zeros(row.n_tokens, np.uint8) for number, row in rows.items()}
        for step in trajectory["steps"]:
            check_fields("rllm.Step", step)
            number, start = step["info"]["segment"], len(step["prompt_ids"])
            row, end = rows[number], start + len(step["response_ids"])
            assert [*step["prompt_ids"], *step["response_ids"]] == row.token_ids[:end].tolist()
            np.testing.assert_array_equal(np.array(step["logprobs"], np.float32), row.segment.logprobs[start:end])
            assert step["weight_version"] == row.versions[start:end].min()
            masks[number][start:end] += 1
        for number, row in rows.items():
            np.testing.assert_array_equal(masks[number], row.loss_mask)


def test_the_reward_is_the_trajectory_s_and_stands_on_its_last_step() -> None:
    """rLLM compares trajectories by theirs, and charts what steps sum up to."""
    for fields, rollout in zip(episode_fields(ROLLOUTS), ROLLOUTS, strict=True):
        (trajectory,) = fields["trajectories"]
        assert trajectory["reward"] == rollout.reward
        assert [step["done"] for step in trajectory["steps"]][:-1] == [False] * (len(trajectory["steps"]) - 1)
        if trajectory["steps"]:
            assert sum(step["reward"] for step in trajectory["steps"]) == rollout.reward
            assert trajectory["steps"][-1]["done"]
            assert {step["advantage"] for step in trajectory["steps"]} == {rollout.advantage}


def test_what_is_masked_or_sampled_nothing_has_no_step_and_its_reward() -> None:
    """It counts in the mean of its group; a made-up step would be trained."""
    empty = replace(ROLLOUTS[0], reward=-1.0, trajectory=replace(ROLLOUTS[0].trajectory, segments=()))
    masked = next(rollout for rollout in ROLLOUTS if not any(row.loss_mask.any() for row in rows_of(rollout)))

    for fields, rollout in zip(episode_fields([empty, masked]), (empty, masked), strict=True):
        assert (fields["trajectories"][0]["steps"], fields["trajectories"][0]["reward"]) == ([], rollout.reward)


def test_members_of_a_group_have_its_id_and_a_number_of_their_own() -> None:
    """rLLM takes the part before the first colon for the group."""
    odd = replace(ROLLOUTS[0], group="team:run.e0-1.0")

    found = [fields["id"].split(":") for fields in episode_fields([*ROLLOUTS, odd])]

    assert {len(parts) for parts in found} == {2}
    assert found[: len(ROLLOUTS)] == [[rollout.group, str(rollout.member)] for rollout in ROLLOUTS]


def test_reasons_to_end_are_told_in_rllm_s_words() -> None:
    stops = {"finished": "env_done", "tokens": "max_response_length_exceeded", "time": "timeout", "stuck": "unknown"}

    assert {stop: episode_fields([replace(ROLLOUTS[0], stop=stop)])[0]["termination_reason"] for stop in stops} == stops


def test_a_logprob_of_nan_is_refused() -> None:
    segment = ROLLOUTS[0].trajectory.segments[0]
    bad = replace(segment, logprobs=np.full(len(segment.logprobs), np.nan, np.float32))

    with pytest.raises(BadTrajectory, match="logprob of nan"):
        episode_fields([replace(ROLLOUTS[0], trajectory=replace(ROLLOUTS[0].trajectory, segments=(bad,)))])


def test_with_rllm_itself() -> None:
    pytest.importorskip("rllm", reason="needs rllm, which the environment of the tests does not have")

    assert len(episodes(ROLLOUTS)) == len(ROLLOUTS)
