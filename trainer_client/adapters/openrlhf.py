"""Rollouts for OpenRLHF: `Experience`s, before or after its statistics, and what an agent executor returns.

Made for OpenRLHF 0.11. An experience is one sequence of T tokens whose `action_mask` and `rollout_log_probs` have T - 1 entries: entry t
speaks of token t + 1. The first token of a segment is nobody's action, so where it was sampled (an empty prompt) it has no loss.

OpenRLHF takes the statistics of a group from every `n_samples_per_prompt` rows, so `experiences` takes one segment a trajectory and
complete groups, and refuses the rest. `trained` has the advantages of trajectories in it, and takes anything.

Legend for array shapes: T tokens of one segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer_client.adapters.demands import Several, advantage_of, one_row_each, text_rows, was_cut_off
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import Row

if TYPE_CHECKING:
    from openrlhf.trainer.ppo_utils.experience import Experience

OTHERWISE = "give its replay buffer trained(rollouts), which has advantages, or leave out with complete_groups(rollouts, n=n)"


def executor_output(rollout: Rollout, *, several: Several = "refuse", label: str = "answer") -> dict[str, Any]:
    """What `AgentExecutorBase.execute` returns of one trajectory.

    `action_ranges` are the stretches that are trained, `rollout_log_probs` has an entry a token, 0 where nothing was sampled. Both are
    told by token; OpenRLHF shifts them itself.

    Args:
        several: what becomes of a trajectory of several segments.
        label: field of the prompt's row that OpenRLHF calls the label.

    Raises:
        InvalidRequest: it has several segments, or no sampled token.
        BadTrajectory: it must not be trained on.
    """
    (row,) = one_row_each([rollout], n=1, several=several, trainer="an executor of OpenRLHF", otherwise=OTHERWISE)
    return {
        "prompt": _prompt(rollout),
        "label": str(rollout.data.get(label, "")),
        "images": None,
        "mm_train_inputs": None,
        "reward": rollout.reward,
        "scores": rollout.reward,
        "observation_tokens": row.token_ids.tolist(),
        "action_ranges": _stretches(row),
        "rollout_log_probs": row.logprobs.tolist(),
        "truncated": was_cut_off(rollout),
        "extra_logs": dict(rollout.components),
    }


def experiences(rollouts: Sequence[Rollout], *, n: int, several: Several = "refuse", label: str = "answer") -> list[Experience]:
    """`experience_fields` as OpenRLHF's own type: what its samples generator returns."""
    return [_experience(fields) for fields in experience_fields(rollouts, n=n, several=several, label=label)]


def trained(rollouts: Sequence[Rollout], *, label: str = "answer") -> list[Experience]:
    """`trained_fields` as OpenRLHF's own type: for its replay buffer, with log probabilities of the policy still to be computed."""
    return [_experience(fields) for fields in trained_fields(rollouts, label=label)]


def experience_fields(
    rollouts: Sequence[Rollout], *, n: int, several: Several = "refuse", label: str = "answer"
) -> Iterator[dict[str, Any]]:
    """What an `Experience` of each trajectory has before its advantage is known, as arrays of a first dimension of 1.

    `sequences` and `attention_mask` are int64, shape [1, T]; `action_mask` is int64, shape [1, T - 1], 1 on what is trained;
    `rollout_log_probs` is float32, shape [1, T - 1], 0 where nothing was sampled. Of a trajectory that is masked as a whole OpenRLHF
    charts a KL of NaN, and trains nothing.

    Args:
        rollouts: the members of a group stand together.
        n: `n_samples_per_prompt`.
        several: what becomes of trajectories of several segments.
        label: field of the prompt's row that OpenRLHF calls the label.

    Raises:
        InvalidRequest: a trajectory has several segments or no sampled token, or a group is short.
        BadTrajectory: one must not be trained on.
    """
    names = _names(rollouts)
    for row in one_row_each(rollouts, n=n, several=several, trainer="OpenRLHF", otherwise=OTHERWISE):
        yield _fields(row, label, names)


def trained_fields(rollouts: Sequence[Rollout], *, label: str = "answer") -> Iterator[dict[str, Any]]:
    """What an `Experience` of each segment has, with `advantages` and `returns`: float32, shape [1, T - 1], 0 on what is not trained.

    Segments that nothing is trained of are left out: all that they do is cost.

    Raises:
        InvalidRequest: a rollout has no advantage.
        BadTrajectory: one must not be trained on.
    """
    names = _names(rollouts)
    for rollout in rollouts:
        advantage_of(rollout)
        for row in text_rows(rollout, "OpenRLHF"):
            if row.loss_mask[1:].any():
                advantages = row.advantages[None, 1:]
                yield {**_fields(row, label, names), "advantages": advantages, "returns": advantages.copy()}


def _names(rollouts: Sequence[Rollout]) -> list[str]:
    """Of all components: OpenRLHF stacks what it charts, so every experience has them all."""
    return sorted({name for rollout in rollouts for name in rollout.components})


def _fields(row: Row, label: str, names: Sequence[str]) -> dict[str, Any]:
    rollout = row.rollout
    trained = np.flatnonzero(row.loss_mask[1:])
    reward = np.array([rollout.reward], np.float32)
    return {
        "sequences": row.token_ids.astype(np.int64)[None],
        "attention_mask": np.ones((1, row.n_tokens), np.int64),
        "action_mask": row.loss_mask[None, 1:].astype(np.int64),
        "rollout_log_probs": row.logprobs[None, 1:],
        "rewards": reward,
        "scores": reward.copy(),
        "response_length": np.array([trained[-1] - trained[0] + 1 if len(trained) else 0], np.int64),
        "truncated": np.array([was_cut_off(rollout)]),
        "total_length": np.array([row.n_tokens], np.float32),
        "prompts": [_prompt(rollout)],
        "labels": [str(rollout.data.get(label, ""))],
        "images": [None],
        "mm_train_inputs": [None],
        "info": {
            "response_clip_ratio": np.array([was_cut_off(rollout)]),
            "reward": reward.copy(),
            "score": reward.copy(),
            **{name: np.array([rollout.components.get(name, np.nan)], np.float32) for name in names},
        },
    }


def _experience(fields: dict[str, Any]) -> Experience:
    import torch
    from openrlhf.trainer.ppo_utils.experience import Experience

    def tensors(value: object) -> object:
        if isinstance(value, dict):
            return {name: tensors(each) for name, each in value.items()}
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else value

    return Experience(**{name: tensors(value) for name, value in fields.items()})


def _stretches(row: Row) -> list[tuple[int, int]]:
    """First token and one past the last of each stretch that is trained."""
    edges = np.flatnonzero(np.diff(row.loss_mask, prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _prompt(rollout: Rollout) -> str:
    """What was said before the first answer."""
    found = []
    for message in rollout.trajectory.messages:
        if message.role == "assistant":
            break
        found.append(message.content)
    return "\n".join(found)


__all__ = ["executor_output", "experience_fields", "experiences", "trained", "trained_fields"]
