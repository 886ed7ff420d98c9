"""Rollouts for slime: groups of `Sample`s, which a rollout function returns.

Made for the fields that slime had in autumn 2026; it is installed from its repository alone. One sample a segment: `tokens` are all, masks
and logprobs have an entry a token of the response, which begins with the first sampled token. The samples of one trajectory have one
`rollout_id`, by which slime's loss counts it once.

slime takes the statistics of a group from every `n_samples_per_prompt` samples, and where their number is another it takes all samples of a
step for one group. So `samples` takes one segment a trajectory and complete groups, and refuses the rest. `trained` has advantages in
place of rewards, for `--disable-rewards-normalization`, and takes anything.

Where rollouts were read with routed experts a sample has those of all tokens but its last, as slime asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer_client.adapters.demands import Several, advantage_of, have_experts, one_row_each, text_rows, was_cut_off
from trainer_client.batches.experts import experts_of
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import Row

if TYPE_CHECKING:
    from slime.utils.types import Sample

Decode = Callable[[list[int]], str]
"""Text of some tokens, as `tokenizer.decode`."""
OTHERWISE = "give it trained(rollouts) and --disable-rewards-normalization, or leave out with complete_groups(rollouts, n=n)"


def samples(rollouts: Sequence[Rollout], *, n: int, several: Several = "refuse", decode: Decode | None = None) -> list[list[Sample]]:
    """`sample_fields` as slime's own type."""
    return _samples(sample_fields(rollouts, n=n, several=several, decode=decode))


def trained(rollouts: Sequence[Rollout], *, decode: Decode | None = None) -> list[list[Sample]]:
    """`trained_fields` as slime's own type."""
    return _samples(trained_fields(rollouts, decode=decode))


def sample_fields(
    rollouts: Sequence[Rollout], *, n: int, several: Several = "refuse", decode: Decode | None = None
) -> list[list[dict[str, Any]]]:
    """What the samples of each group have, as plain lists; `status` is the text of slime's.

    `loss_mask` is 1 on what is trained, `rollout_log_probs` are 0 where nothing was sampled; `rollout_routed_experts` is an array, int32,
    shape [T - 1, layers, top_k], or None. The components of the reward and the id of the job are in `metadata`.

    Args:
        rollouts: the members of a group stand together.
        n: `n_samples_per_prompt`.
        several: what becomes of trajectories of several segments.
        decode: for `response`, which slime logs and does not train; None = no text.

    Raises:
        InvalidRequest: a trajectory has several segments or no sampled token, or a group is short.
        BadTrajectory: one must not be trained on.
    """
    rows = one_row_each(rollouts, n=n, several=several, trainer="slime", otherwise=OTHERWISE)
    return _groups([(row, row.rollout.reward) for row in rows], decode)


def trained_fields(rollouts: Sequence[Rollout], *, decode: Decode | None = None) -> list[list[dict[str, Any]]]:
    """What the samples of each group have, a sample a segment, with the advantage of its trajectory as its reward.

    Segments that nothing is trained of are left out: all that they do is cost. What a trajectory got stands in `metadata` as `reward`.

    Raises:
        InvalidRequest: a rollout has no advantage.
        BadTrajectory: one must not be trained on.
    """
    rows = [
        (row, advantage_of(rollout))
        for rollout in rollouts
        for row in text_rows(rollout, "slime")
        if row.loss_mask[_prompt_tokens(row) :].any()
    ]
    return _groups(rows, decode)


def _prompt_tokens(row: Row) -> int:
    """A response begins behind a token at the least: slime predicts its first from what stands before."""
    return max(1, row.prompt_tokens)


def _groups(rows: Sequence[tuple[Row, float]], decode: Decode | None) -> list[list[dict[str, Any]]]:
    have_experts([row for row, _ in rows])  # all or none
    found: list[list[dict[str, Any]]] = []
    index = 0
    trajectories: dict[str, int] = {}
    for number, (_, members) in enumerate(groupby(rows, key=lambda each: each[0].rollout.group)):
        group = []
        for row, reward in members:
            rollout_id = trajectories.setdefault(row.rollout.job, len(trajectories))
            group.append({"group_index": number, "index": index, "rollout_id": rollout_id, **_fields(row, reward, decode)})
            index += 1
        found.append(group)
    return found


def _fields(row: Row, reward: float, decode: Decode | None) -> dict[str, Any]:
    rollout, at = row.rollout, _prompt_tokens(row)
    messages = [{"role": message.role, "content": message.content} for message in rollout.trajectory.messages]
    answered = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    tokens = row.token_ids.tolist()
    return {
        "prompt": messages[:answered],
        "tokens": tokens,
        "response": "" if decode is None else decode(tokens[at:]),
        "response_length": len(tokens) - at,
        "reward": reward,
        "loss_mask": row.loss_mask[at:].tolist(),
        "weight_versions": [span.version for span in row.segment.versions],
        "rollout_log_probs": row.logprobs[at:].tolist(),
        "rollout_routed_experts": None if row.experts is None else experts_of(row).astype(np.int32),
        "status": "truncated" if was_cut_off(rollout) else "completed",
        "metadata": {"job": rollout.job, "reward": rollout.reward, **rollout.components},
    }


def _samples(groups: Sequence[Sequence[dict[str, Any]]]) -> list[list[Sample]]:
    from slime.utils.types import Sample

    return [[Sample(**{**fields, "status": Sample.Status(fields["status"])}) for fields in group] for group in groups]


__all__ = ["sample_fields", "samples", "trained", "trained_fields"]
