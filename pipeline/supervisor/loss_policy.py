"""What of a member is trained, by why it stopped: `train`, `mask` or `exclude`.

By default what was cut off is masked: a limit of length or time ends a text where the policy chose nothing, so its reward says something
about the prompt (it stays in the baseline) and little about the tokens (they get no loss).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from pipeline.messages import StopReason


class Loss(StrEnum):
    """What a trainer does with a member."""

    TRAIN = "train"
    """It counts in mean and spread, and its tokens get a loss."""
    MASK = "mask"
    """It counts in mean and spread; its tokens get none."""
    EXCLUDE = "exclude"
    """It is outside the statistics, like a member that infrastructure broke."""


DEFAULT_LOSS: Mapping[StopReason, Loss] = MappingProxyType(
    dict.fromkeys((StopReason.TOKENS, StopReason.CONTEXT, StopReason.TIME), Loss.MASK)
)


def loss_of(stop: str, policy: Mapping[StopReason, Loss]) -> Loss:
    """What is trained of a member that stopped for this reason; an unknown one (a newer worker's) is trained like any other."""
    for reason, loss in policy.items():
        if reason.value == stop:
            return loss
    return Loss.TRAIN


def loss_text(policy: Mapping[StopReason, Loss]) -> str:
    """As one field of a step: `context:mask time:mask`."""
    return " ".join(sorted(f"{reason.value}:{loss.value}" for reason, loss in policy.items()))


def loss_from_text(text: str) -> Mapping[StopReason, Loss]:
    """The policy in that field. Reasons that only a newer version knows are left out.

    Raises:
        ValueError: an unknown way to train.
    """
    known = {reason.value for reason in StopReason}
    pairs = (word.partition(":") for word in text.split())
    return {StopReason(reason): Loss(loss) for reason, _, loss in pairs if reason in known}


__all__ = ["DEFAULT_LOSS", "Loss", "loss_from_text", "loss_of", "loss_text"]
