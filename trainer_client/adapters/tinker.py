"""Rollouts for tinker: `Datum`s for `forward_backward` with the losses `importance_sampling`, `ppo` and `cispo`.

Made for tinker 0.38. One datum a segment, with the advantage of its trajectory. Inputs are all tokens but the last, targets all but the
first, and what speaks of a token stands where that token is the target: arrays of T - 1. The first token of a segment is nobody's
target, so where it was sampled (an empty prompt) it has no loss.

Legend for array shapes: T tokens of one segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer_client.adapters.demands import advantage_of, text_rows
from trainer_client.batches.rollout import Rollout

if TYPE_CHECKING:
    import tinker


def data(rollouts: Sequence[Rollout], *, mask: bool = False, masked: bool = False) -> list[tinker.Datum]:
    """`datum_fields` as tinker's own type."""
    import tinker

    return [
        tinker.Datum(model_input=tinker.ModelInput.from_ints(fields["tokens"]), loss_fn_inputs=fields["loss_fn_inputs"])
        for fields in datum_fields(rollouts, mask=mask, masked=masked)
    ]


def datum_fields(rollouts: Sequence[Rollout], *, mask: bool = False, masked: bool = False) -> Iterator[dict[str, Any]]:
    """What each datum is made of: `tokens`, a list of T - 1 ids, and `loss_fn_inputs`, arrays of shape [T - 1].

    `target_tokens` are int64; `logprobs`, 0 where nothing was sampled, and `advantages`, 0 on what is not trained, are float32.

    Args:
        rollouts: with advantages.
        mask: whether `mask` is among the inputs of the loss, float32, 1 on what is trained. tinker's cookbook has it there and takes it
            out before `forward_backward`, which refuses it.
        masked: whether segments that nothing is trained of come, too: they cost a forward pass.

    Raises:
        InvalidRequest: a rollout has no advantage.
        BadTrajectory: one must not be trained on.
    """
    for rollout in rollouts:
        advantage_of(rollout)
        for row in text_rows(rollout, "tinker"):
            if row.n_tokens < 2 or not (masked or row.loss_mask[1:].any()):
                continue
            inputs = {
                "target_tokens": row.token_ids[1:].astype(np.int64),
                "logprobs": row.logprobs[1:],
                "advantages": row.advantages[1:],
            }
            if mask:
                inputs["mask"] = row.loss_mask[1:].astype(np.float32)
            yield {"tokens": row.token_ids[:-1].tolist(), "loss_fn_inputs": inputs}


__all__ = ["data", "datum_fields"]
