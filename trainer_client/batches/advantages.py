"""Advantages of trajectories from the rewards of their group, and the shaping that may come before.

Invariants:
  1. Statistics are over the members of one group that count, each once, in float64: never over rows, of which a trajectory may have more.
  2. They never bring a NaN. A group of one member has nothing to compare with: its advantage is 0.
  3. Advantages follow from records alone, so every rank computes the same ones without a word to the others.

Legend for array shapes: M members of one group that count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import InvalidRequest

F64 = NDArray[np.float64]


class Advantage(Protocol):
    """Advantages of one group."""

    def of_group(self, rewards_M: F64) -> F64:
        """An advantage for each member, in the same order.

        Args:
            rewards_M: float64, shape [M], M >= 1, finite; shaped, if there is shaping.
        """
        ...


@dataclass(frozen=True, slots=True)
class GRPO:
    """Reward less the mean of its group, and with `std` over the group's standard deviation.

    Source: Shao et al. 2024, arXiv 2402.03300, section 4.1.2. Without `std`: Liu et al. 2025 (Dr. GRPO), arXiv 2503.20783, section 3.1.
    """

    std: bool = True
    ddof: int = 1
    """Deviations are summed over M - ddof. 1 as TRL and verl have it."""
    eps: float = 1e-6
    """Added to the standard deviation."""

    def __post_init__(self) -> None:
        if self.ddof not in (0, 1):
            raise InvalidRequest(f"expected 0 or 1, got {self.ddof!r}", field="ddof")
        if not 0 <= self.eps <= 1:
            raise InvalidRequest(f"expected a number from 0 to 1, got {self.eps!r}", field="eps")

    def of_group(self, rewards_M: F64) -> F64:
        if rewards_M.max() == rewards_M.min():  # asked of the rewards: those less their mean may differ from 0 by rounding, all alike
            return np.zeros_like(rewards_M)
        centred = np.asarray(rewards_M - rewards_M.mean())
        if not self.std:
            return centred
        return np.asarray(centred / (rewards_M.std(ddof=self.ddof) + self.eps))


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """Reward less the mean of the others of its group.

    Source: Ahmadian et al. 2024 (RLOO), arXiv 2402.14740, section 3.4; Kool et al. 2019.
    """

    def of_group(self, rewards_M: F64) -> F64:
        members = len(rewards_M)
        if members == 1:
            return np.zeros_like(rewards_M)
        return np.asarray((rewards_M - rewards_M.mean()) * (members / (members - 1)))


@dataclass(frozen=True, slots=True)
class Overlong:
    """A penalty for trajectories that come near their limit of sampled tokens: 0 until `max_tokens - margin`, then falling in a line to
    `-penalty` at `max_tokens`, where it stays.

    It comes after the filter, which looks at the task's own score, and before the statistics of the group.
    Source: Yu et al. 2025 (DAPO), arXiv 2503.14476, equation 13, where `margin` is called the cache.
    """

    max_tokens: int
    """Sampled tokens of a trajectory from which the whole penalty holds."""
    margin: int
    """Tokens before that in which it grows."""
    penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.margin <= self.max_tokens:
            raise InvalidRequest(f"expected 1 to max_tokens ({self.max_tokens}), got {self.margin!r}", field="margin")
        if not self.penalty > 0:
            raise InvalidRequest(f"expected a number above 0, got {self.penalty!r}", field="penalty")

    def shape(self, rewards_M: F64, sampled_tokens_M: NDArray[np.int64]) -> F64:
        """Rewards with the penalty.

        Args:
            rewards_M: float64, shape [M].
            sampled_tokens_M: int64, shape [M]; over all segments of each trajectory.
        """
        over = np.clip((sampled_tokens_M - (self.max_tokens - self.margin)) / self.margin, 0.0, 1.0)
        return np.asarray(rewards_M - self.penalty * over)


__all__ = ["F64", "GRPO", "Advantage", "LeaveOneOut", "Overlong"]
