"""AReaL: episodes bit for bit, and what its roll by one makes of them; with its own functions where it is installed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.errors import InvalidRequest
from tests.unit.adapters.contracts import check_arrays
from tests.unit.adapters.random_rollouts import drawn_rollouts, single_rows
from trainer_client.adapters.areal import episode_fields, trained, trained_fields
from trainer_client.adapters.demands import complete_groups
from trainer_client.batches.rows import BadTrajectory, Row, all_rows, rows_of

ROLLOUTS = drawn_rollouts()
ROWS = list(all_rows(ROLLOUTS))
TRAINED = [row for row in ROWS if row.loss_mask[1:].any()]


def test_episodes_are_rows_bit_for_bit() -> None:
    singles = single_rows()

    found = list(episode_fields(singles, n=1))

    assert len(found) == len(singles)
    for fields, rollout in zip(found, singles, strict=True):
        (row,) = rows_of(rollout)
        _is_row(fields, row)
        assert fields["rewards"] == np.float32(rollout.reward)


def test_rows_with_advantages_are_all_that_is_trained_of_any_trajectory() -> None:
    found = list(trained_fields(ROLLOUTS))

    assert len(found) == len(TRAINED) < len(ROWS)
    for fields, row in zip(found, TRAINED, strict=True):
        _is_row(fields, row)
        assert fields["rewards"] == np.float32(row.rollout.advantage or 0.0)


def test_rolled_to_the_left_every_trained_token_stands_where_it_is_predicted() -> None:
    """What stood on a first token would wrap around to the last, where the model predicts what comes after the end."""
    assert any(row.loss_mask[0] for row in TRAINED)

    for fields, row in zip(trained_fields(ROLLOUTS), TRAINED, strict=True):
        mask, logprobs = np.roll(fields["loss_mask"], -1), np.roll(fields["logprobs"], -1)
        assert not mask[0, -1]
        at = np.flatnonzero(mask[0])
        np.testing.assert_array_equal(at, np.flatnonzero(row.loss_mask[1:]))
        np.testing.assert_array_equal(logprobs[0, at], row.segment.logprobs[at + 1])


def test_a_reward_reaches_what_was_sampled_before_an_observation_at_the_end() -> None:
    """AReaL puts it on the last token but one and drops it where that predicts nothing trained."""
    assert any(not row.loss_mask[-1] for row in TRAINED)

    for fields in trained_fields(ROLLOUTS):
        assert np.roll(fields["loss_mask"], -1)[0, -2] == 1


def test_short_groups_and_several_segments_and_nothing_sampled_are_refused_where_rows_are_counted() -> None:
    several = next(row.rollout for row in ROWS if row.number)
    empty = replace(ROLLOUTS[0], trajectory=replace(ROLLOUTS[0].trajectory, segments=()))

    for rollouts, why in (([several], "segments: say several='last'"), ([empty], "no sampled token"), (single_rows()[:1], "1 traj")):
        with pytest.raises(InvalidRequest, match=why):
            list(episode_fields(rollouts, n=8))
    full = complete_groups([*ROLLOUTS, empty], n=8)
    assert len(list(episode_fields(full, n=8, several="last"))) == len(full) > 0
    assert list(trained_fields([empty])) == []


def test_what_has_no_advantage_or_a_logprob_of_nan_is_refused() -> None:
    segment = ROLLOUTS[0].trajectory.segments[0]
    bad = replace(segment, logprobs=np.full(len(segment.logprobs), np.nan, np.float32))

    with pytest.raises(InvalidRequest, match="GRPO"):
        list(trained_fields([replace(ROLLOUTS[0], advantage=None)]))
    with pytest.raises(BadTrajectory, match="logprob of nan"):
        list(trained_fields([replace(ROLLOUTS[0], trajectory=replace(ROLLOUTS[0].trajectory, segments=(bad,)))]))


def test_with_areal_itself() -> None:
    """Its own padding and advantages: every trained token gets the advantage of its trajectory, and no other does."""
    pytest.importorskip("areal", reason="needs areal, which the environment of the tests does not have")
    from areal.api.cli_args import PPOActorConfig
    from areal.trainer.ppo.actor import PPOActor
    from areal.utils.data import concat_padded_tensors

    config = PPOActorConfig(
        experiment_name="e", trial_name="t", path="", kl_ctl=0.0, use_decoupled_loss=True, adv_norm=None, reward_norm=None, reward_clip=1e9
    )
    config.mask_no_eos_with_zero = False

    batch = PPOActor(config, engine=None)._compute_advantages(concat_padded_tensors(trained(ROLLOUTS)))

    for at, row in enumerate(TRAINED):
        mask = batch["loss_mask"][at].numpy() == 1
        np.testing.assert_array_equal(np.flatnonzero(mask), np.flatnonzero(row.loss_mask[1:]))
        np.testing.assert_allclose((batch["advantages"][at].numpy() * mask)[mask], row.rollout.advantage or 0.0, rtol=1e-6)
        np.testing.assert_array_equal(batch["logprobs"][at].numpy()[mask], row.logprobs[1:][row.loss_mask[1:] == 1])


def _is_row(fields: dict[str, Any], row: Row) -> None:
    tokens = fields["input_ids"].shape[1]
    check_arrays("areal.episode", fields, N=1, T=tokens)
    assert not row.loss_mask[tokens:].any(), "nothing that is trained is cut off"
    np.testing.assert_array_equal(fields["input_ids"][0], row.token_ids[:tokens])
    np.testing.assert_array_equal(fields["loss_mask"][0, 1:], row.loss_mask[1:tokens])
    np.testing.assert_array_equal(fields["logprobs"][0], row.logprobs[:tokens])
    np.testing.assert_array_equal(fields["versions"][0], row.versions[:tokens])
    assert fields["loss_mask"][0, 0] == 0
