"""Weights that turn a sum over tokens into the mean that a loss is meant to be, the same on every rank.

With `weights` of all microbatches of all ranks, `sum(token_loss * weights)` is the loss of the step. No rank divides by a number of its
own, so ranks that got other lengths, or nothing at all, change nothing. Every row of a trajectory has its weight.

Names as the papers and trainers have them: `token_mean` is DAPO's (arXiv 2503.14476, section 3.3; TRL `dapo`, verl `token-mean`),
`trajectory_mean` GRPO's (arXiv 2402.03300, equation 3; TRL `grpo`, verl `seq-mean-token-mean`), `fixed_length` Dr. GRPO's
(arXiv 2503.20783, section 3.1; TRL `dr_grpo`, verl `seq-mean-token-sum-norm`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from pipeline.errors import InvalidRequest

LossMean = Literal["token_mean", "trajectory_mean", "fixed_length"]


@dataclass(frozen=True, slots=True)
class StepTotals:
    """What a step has in all, over every rank."""

    loss_tokens: int
    """Tokens that have a loss."""
    trajectories: int
    """Those that have at least one such token."""


@dataclass(frozen=True, slots=True)
class LossWeights:
    """The weight of one loss token of a trajectory."""

    mean: LossMean
    totals: StepTotals
    length: int = 0
    """With `fixed_length`: tokens by which each trajectory is divided, such as the most that one may sample."""

    def __post_init__(self) -> None:
        if self.mean not in get_args(LossMean):
            raise InvalidRequest(f"expected one of {', '.join(get_args(LossMean))}, got {self.mean!r}", field="loss")
        if (self.mean == "fixed_length") != (self.length > 0):
            raise InvalidRequest(f"expected a length above 0 with 'fixed_length' and none otherwise, got {self.length}", field="length")

    def of(self, loss_tokens: int) -> float:
        """For a trajectory with so many loss tokens in all its segments; 0 where it has none."""
        if not loss_tokens:
            return 0.0
        if self.mean == "token_mean":
            return 1.0 / self.totals.loss_tokens
        return 1.0 / (self.totals.trajectories * (loss_tokens if self.mean == "trajectory_mean" else self.length))


__all__ = ["LossMean", "LossWeights", "StepTotals"]
