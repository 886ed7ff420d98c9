"""Rollouts for AReaL: what `RolloutWorkflow.arun_episode` returns, a map of tensors with a first dimension of 1.

Made for AReaL 1.0. All arrays have one entry a token and nothing is shifted: AReaL rolls mask and logprobs to the left by one. Two things
follow that would bend a training run without a trace:

- What stands on the first token would come to stand on the last, so the first token of a segment is not trained here, sampled or not.
- AReaL puts the reward on the last token but one, and lets it pass back over trained tokens alone. Behind an observation at the end it
  would never reach them, so what follows the last trained token is cut off; no trained token was predicted from it.

AReaL takes the statistics of a group from every `group_size` rows, so `episodes` takes one segment a trajectory and complete groups, and
refuses the rest. `trained` has advantages in place of rewards, for a trainer without `reward_norm` and `adv_norm`, and takes anything.

Legend for array shapes: T tokens of one segment, without what was cut off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainer_client.adapters.demands import Several, advantage_of, one_row_each, text_rows
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import Row

if TYPE_CHECKING:
    import torch

OTHERWISE = "give it trained(rollouts) and set reward_norm and adv_norm to null, or leave out with complete_groups(rollouts, n=n)"


def episodes(rollouts: Sequence[Rollout], *, n: int, several: Several = "refuse") -> list[dict[str, torch.Tensor]]:
    """`episode_fields` as tensors."""
    return [_tensors(fields) for fields in episode_fields(rollouts, n=n, several=several)]


def trained(rollouts: Sequence[Rollout]) -> list[dict[str, torch.Tensor]]:
    """`trained_fields` as tensors."""
    return [_tensors(fields) for fields in trained_fields(rollouts)]


def episode_fields(rollouts: Sequence[Rollout], *, n: int, several: Several = "refuse") -> Iterator[dict[str, NDArray[Any]]]:
    """What an episode of each trajectory returns.

    `input_ids` and `loss_mask` are int32, shape [1, T]; `logprobs` float32, shape [1, T], 0 where nothing was sampled; `versions` int32,
    shape [1, T], -1 there; `attention_mask` bool, shape [1, T]; `rewards` float32, shape [1].

    Args:
        rollouts: the members of a group stand together.
        n: AReaL's `group_size`.
        several: what becomes of trajectories of several segments.

    Raises:
        InvalidRequest: a trajectory has several segments or no sampled token, or a group is short.
        BadTrajectory: one must not be trained on.
    """
    for row in one_row_each(rollouts, n=n, several=several, trainer="AReaL", otherwise=OTHERWISE):
        yield _fields(row, row.rollout.reward)


def trained_fields(rollouts: Sequence[Rollout]) -> Iterator[dict[str, NDArray[Any]]]:
    """What an episode of each segment returns, with the advantage of its trajectory as its reward.

    With `discount` and `gae_lambda` of 1 and no KL AReaL gives that to every trained token. Segments that nothing is trained of are left
    out: all that they do is cost.

    Raises:
        InvalidRequest: a rollout has no advantage.
        BadTrajectory: one must not be trained on.
    """
    for rollout in rollouts:
        advantage = advantage_of(rollout)
        for row in text_rows(rollout, "AReaL"):
            if row.loss_mask[1:].any():
                yield _fields(row, advantage)


def _fields(row: Row, reward: float) -> dict[str, NDArray[Any]]:
    trained = np.flatnonzero(row.loss_mask[1:])
    end = int(trained[-1]) + 2 if len(trained) else row.n_tokens
    loss_mask = row.loss_mask[None, :end].astype(np.int32)
    loss_mask[0, 0] = 0
    return {
        "input_ids": row.token_ids[None, :end].astype(np.int32),
        "loss_mask": loss_mask,
        "logprobs": row.logprobs[None, :end],
        "versions": row.versions[None, :end],
        "attention_mask": np.ones((1, end), np.bool_),
        "rewards": np.array([reward], np.float32),
    }


def _tensors(fields: dict[str, NDArray[Any]]) -> dict[str, torch.Tensor]:
    import torch

    return {name: torch.from_numpy(array) for name, array in fields.items()}


__all__ = ["episode_fields", "episodes", "trained", "trained_fields"]
