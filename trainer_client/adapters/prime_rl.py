"""Rollouts for prime-rl: the `TrainingSample`s that its orchestrator sends to the packer of its trainer.

Made for the fields that prime-rl had in autumn 2026; it is installed from its repository alone. One sample a segment, with the advantage
of its trajectory on every token that is trained. All arrays have one entry a token and nothing is shifted: prime-rl shifts logits, so the
first token of a segment is predicted from nothing and is not trained here, sampled or not.

Where rollouts were read with routed experts a sample has a row of them for each token, zeros where none are known: on its last one, which
never went through the model, and on an observation at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer_client.adapters.demands import advantage_of, text_rows
from trainer_client.batches.experts import known_experts
from trainer_client.batches.rollout import Rollout
from trainer_client.batches.rows import Row

if TYPE_CHECKING:
    from prime_rl.transport.types import TrainingSample


def training_samples(rollouts: Sequence[Rollout], *, masked: bool = False) -> list[TrainingSample]:
    """`sample_fields` as prime-rl's own type."""
    from prime_rl.transport.types import RoutedExperts, TrainingSample

    found = []
    for fields in sample_fields(rollouts, masked=masked):
        if "routed_experts" in fields:
            fields["routed_experts"] = RoutedExperts(**fields["routed_experts"])
        found.append(TrainingSample(**fields))
    return found


def sample_fields(rollouts: Sequence[Rollout], *, masked: bool = False) -> Iterator[dict[str, Any]]:
    """What a `TrainingSample` of each segment has, as plain lists of T entries.

    `mask` is true on what is trained, `logprobs` are 0 where nothing was sampled, `temperatures` are what each token was sampled with, and
    `advantages` are 0 on what is not trained. `env_name` is the task. With routed experts there is
    `routed_experts`: `data`, the bytes of an array of `dtype` uint8 or uint16 and `shape` [T, layers, top_k].

    Args:
        rollouts: with advantages.
        masked: whether segments that nothing is trained of come, too: they cost a forward pass.

    Raises:
        InvalidRequest: a rollout has no advantage.
        BadTrajectory: one must not be trained on.
    """
    for rollout in rollouts:
        advantage_of(rollout)
        for row in text_rows(rollout, "prime-rl"):
            mask = row.loss_mask.astype(bool)
            mask[0] = False
            if masked or mask.any():
                fields = {
                    "token_ids": row.token_ids.tolist(),
                    "mask": mask.tolist(),
                    "logprobs": row.logprobs.tolist(),
                    "temperatures": row.temperatures.tolist(),
                    "env_name": rollout.task,
                    "advantages": (row.advantages * mask).tolist(),
                }
                if row.experts is not None:
                    fields["routed_experts"] = _experts(row)
                yield fields


def _experts(row: Row) -> dict[str, Any]:
    known = known_experts(row)
    whole = np.zeros((row.n_tokens, *known.shape[1:]), known.dtype)
    whole[: len(known)] = known
    return {"data": whole.tobytes(), "shape": list(whole.shape), "dtype": whole.dtype.name}


__all__ = ["sample_fields", "training_samples"]
