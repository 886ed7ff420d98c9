"""What a trainer asks for when it opens a step, as the ledger keeps it.

The trainer-facing request is checked by pydantic in `trainer_client`; this record is what stands in the step's hash, a readable field each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pipeline.errors import InvalidRequest

MIN_MEMBERS_SHARE = 0.75
"""A group closes short with this share of its members, unless the step says otherwise."""


class CancelRule(StrEnum):
    """What happens to groups in flight that nobody needs when a step has its target."""

    DEFAULT = "default"
    """A group with a finished member runs on; one without is cancelled, least work first, and its prompt returns whole. Unbiased."""
    CARRY = "carry"
    """Nothing is cancelled: open groups go on into the next step. Unbiased; groups grow older."""
    ALL = "all"
    """Everything is cancelled. Biased: what takes long is cancelled most, so trained members are too short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """What one optimizer step asks for."""

    target: int
    """Informative groups."""
    n: int
    """Members of a group."""
    over: float = 1.5
    """Over-sampling: groups in flight beyond those that the running filter rate says are needed, as a factor of at least 1."""
    eps: float = 1e-6
    """A group is informative when the spread of `component` over its valid members is above this."""
    component: str = "score"
    """Named part of the reward that the filter looks at; `score` is the reward itself when no part has that name."""
    policy: str = "spread"
    """Name of the informativeness policy (`policies.POLICIES`)."""
    cancel: CancelRule = CancelRule.DEFAULT
    min_members: int = 0
    """Fewest valid members with which a group closes short; 0 = three quarters of `n`, rounded up."""
    max_redraws: int = 2
    """How often the prompt of a dropped group is drawn again before it counts as dead."""
    reward_low: float = -math.inf
    reward_high: float = math.inf
    """A reward outside these bounds, which the task declares, is a grading fault: outside the statistics."""
    version: str = ""
    """Label of the policy that is expected to sample the groups launched for this step."""
    deterministic: bool = False
    """Groups join in the order of their prompts' places, and what is in flight at the target is given up (`launch_order`)."""

    def __post_init__(self) -> None:
        _check(1 <= self.target <= 100_000, "target", "1 to 100,000 groups", self.target)
        _check(1 <= self.n <= 1024, "n", "1 to 1,024 members", self.n)
        _check(1.0 <= self.over <= 100.0, "over", "a factor of 1 to 100", self.over)
        _check(0.0 <= self.eps < math.inf, "eps", "a finite number, 0 or more", self.eps)
        _check(0 <= self.min_members <= self.n, "min_members", f"0 to n ({self.n})", self.min_members)
        _check(0 <= self.max_redraws <= 1000, "max_redraws", "0 to 1,000", self.max_redraws)
        _check(self.reward_low < self.reward_high, "reward_low", f"less than reward_high ({self.reward_high})", self.reward_low)

    @property
    def fewest(self) -> int:
        """Fewest valid members with which a group counts."""
        return self.min_members or math.ceil(MIN_MEMBERS_SHARE * self.n)

    def fields(self) -> dict[str, str]:
        """The fields of the step's hash."""
        return {
            "target": str(self.target),
            "n": str(self.n),
            "over": repr(self.over),
            "eps": repr(self.eps),
            "component": self.component,
            "policy": self.policy,
            "cancel": self.cancel.value,
            "min_members": str(self.min_members),
            "max_redraws": str(self.max_redraws),
            "low": repr(self.reward_low),
            "high": repr(self.reward_high),
            "version": self.version,
            "deterministic": "1" if self.deterministic else "",
        }

    @classmethod
    def from_fields(cls, found: Mapping[str, str]) -> StepSpec:
        """The record in a step's hash; fields a newer writer added are ignored, ones an older left out take their default.

        Raises:
            KeyError, ValueError: no step of ours.
        """
        return cls(
            target=int(found["target"]),
            n=int(found["n"]),
            over=float(found.get("over", "1.5")),
            eps=float(found.get("eps", "1e-6")),
            component=found.get("component", "score"),
            policy=found.get("policy", "spread"),
            cancel=CancelRule(found.get("cancel", "default")),
            min_members=int(found.get("min_members", "0")),
            max_redraws=int(found.get("max_redraws", "2")),
            reward_low=float(found.get("low", "-inf")),
            reward_high=float(found.get("high", "inf")),
            version=found.get("version", ""),
            deterministic=found.get("deterministic") == "1",
        )


def _check(holds: bool, field: str, expected: str, got: object) -> None:
    if not holds:
        raise InvalidRequest(f"expected {expected}, got {got!r}", field=field)
