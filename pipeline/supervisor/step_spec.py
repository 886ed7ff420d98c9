"""What a trainer asks for when it opens a step, as the ledger keeps it.

The trainer-facing request is checked by pydantic in `trainer_client`; this record is what stands in the step's hash, a readable field each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import orjson

from pipeline.errors import InvalidRequest
from pipeline.messages import StopReason
from pipeline.supervisor.loss_policy import DEFAULT_LOSS, Loss, loss_from_text, loss_text

MAX_DEADLINE_S = 30 * 86_400.0
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


class OnStale(StrEnum):
    """What happens to a group that is older than the step allows (`staleness`)."""

    MARK = "mark"
    """It is trained on, and the trainer is told how old it is."""
    DROP = "drop"
    """Its verdict is `stale`, and its prompt returns whole. Selects by time: what takes long grows old."""


class Surplus(StrEnum):
    """What happens to an informative group that no open step has room for."""

    CARRY = "carry"
    """It waits, and goes first when a step opens."""
    DISCARD = "discard"
    """Its verdict is `surplus`, and its prompt returns whole. What it cost is lost."""


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
    """Name of the informativeness policy (`informative`)."""
    policy_args: Mapping[str, float] = field(default_factory=dict)
    """Numbers that the policy takes, by name."""
    cancel: CancelRule = CancelRule.DEFAULT
    surplus: Surplus = Surplus.CARRY
    max_staleness: int = 1
    """Most updates between the oldest version that sampled a group and the one that is trained with it."""
    on_stale: OnStale = OnStale.MARK
    group_deadline_s: float = 0.0
    """A group that is open so long after its launch ends with what it has; 0 = it may take as long as its jobs may."""
    loss: Mapping[StopReason, Loss] = field(default_factory=lambda: dict(DEFAULT_LOSS))
    """What of a member is trained, by why it stopped; `train` where nothing is said."""
    min_members: int = 0
    """Fewest valid members with which a group closes short; 0 = three quarters of `n`, rounded up."""
    max_redraws: int = 2
    """How often the prompt of a dropped group is drawn again before it counts as dead."""
    reward_low: float = -math.inf
    reward_high: float = math.inf
    """A reward outside these bounds, which the task declares, is a grading fault: outside the statistics."""
    version: str = ""
    """Label of the policy that is expected to sample the groups launched for this step."""
    keep_filtered: float = 0.0
    """Share of filtered groups, by a hash of their prompts' ids, whose trajectories stay until the ack."""
    outside: bool = False
    """Its trainer reports the rewards: nothing is launched for it while that gives no sign."""
    deterministic: bool = False
    """Groups join in the order of their prompts' places, and what is in flight at the target is given up (`launch_order`)."""

    def __post_init__(self) -> None:
        _check(1 <= self.target <= 100_000, "target", "1 to 100,000 groups", self.target)
        _check(1 <= self.n <= 1024, "n", "1 to 1,024 members", self.n)
        _check(1.0 <= self.over <= 100.0, "over", "a factor of 1 to 100", self.over)
        _check(0.0 <= self.eps < math.inf, "eps", "a finite number, 0 or more", self.eps)
        _check(0 <= self.min_members <= self.n, "min_members", f"0 to n ({self.n})", self.min_members)
        _check(0 <= self.max_redraws <= 1000, "max_redraws", "0 to 1,000", self.max_redraws)
        _check(0.0 <= self.keep_filtered <= 1.0, "keep_filtered", "a share of 0 to 1", self.keep_filtered)
        _check(self.reward_low < self.reward_high, "reward_low", f"less than reward_high ({self.reward_high})", self.reward_low)
        _check(0 <= self.max_staleness <= 1_000_000, "max_staleness", "0 to 1,000,000 updates", self.max_staleness)
        _check(0.0 <= self.group_deadline_s <= MAX_DEADLINE_S, "group_deadline_s", "seconds, at most 30 days", self.group_deadline_s)
        finite = all(math.isfinite(value) for value in self.policy_args.values())
        _check(finite, "policy_args", "finite numbers by name", dict(self.policy_args))

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
            "args": orjson.dumps(dict(self.policy_args), option=orjson.OPT_SORT_KEYS).decode(),
            "cancel": self.cancel.value,
            "on_surplus": self.surplus.value,
            "max_staleness": str(self.max_staleness),
            "on_stale": self.on_stale.value,
            "group_deadline_s": repr(self.group_deadline_s),
            "loss": loss_text(self.loss),
            "min_members": str(self.min_members),
            "max_redraws": str(self.max_redraws),
            "low": repr(self.reward_low),
            "high": repr(self.reward_high),
            "version": self.version,
            "keep_filtered": repr(self.keep_filtered),
            "outside": "1" if self.outside else "",
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
            policy_args={str(name): float(value) for name, value in orjson.loads(found.get("args") or "{}").items()},
            cancel=CancelRule(found.get("cancel", "default")),
            surplus=Surplus(found.get("on_surplus", "carry")),
            max_staleness=int(found.get("max_staleness", "1")),
            on_stale=OnStale(found.get("on_stale", "mark")),
            group_deadline_s=float(found.get("group_deadline_s", "0")),
            loss=loss_from_text(found["loss"]) if "loss" in found else dict(DEFAULT_LOSS),
            min_members=int(found.get("min_members", "0")),
            max_redraws=int(found.get("max_redraws", "2")),
            reward_low=float(found.get("low", "-inf")),
            reward_high=float(found.get("high", "inf")),
            version=found.get("version", ""),
            keep_filtered=float(found.get("keep_filtered", "0")),
            outside=found.get("outside") == "1",
            deterministic=found.get("deterministic") == "1",
        )


def _check(holds: bool, field: str, expected: str, got: object) -> None:
    if not holds:
        raise InvalidRequest(f"expected {expected}, got {got!r}", field=field)
