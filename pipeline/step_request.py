"""What an optimizer step asks for, checked before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Self

from pydantic import Field, model_validator

from pipeline.errors import InvalidRequest
from pipeline.messages import JobTemplate, RewardSource, StopReason
from pipeline.requests import DAY_S, TASK, VERSION, TemplateRequest, check_exact
from pipeline.supervisor.informative import check_policy
from pipeline.supervisor.loss_policy import DEFAULT_LOSS, Loss
from pipeline.supervisor.step_spec import CancelRule, OnStale, StepSpec, Surplus

MAX_AHEAD = 64
LossPolicy = dict[Annotated[StopReason, Field(strict=False)], Annotated[Loss, Field(strict=False)]]


class StepRequest(TemplateRequest):
    """What one optimizer step asks for, and how its rollouts are made."""

    groups: int = Field(ge=1, le=100_000)
    """Informative groups to train on."""
    n: int = Field(ge=1, le=1024)
    """Members of a group."""
    over: float = Field(default=1.5, ge=1, le=100)
    """Over-sampling: groups in flight beyond those that the running filter rate says are needed, as a factor."""
    informative_on: str = Field(default="score", min_length=1, max_length=64)
    """Named part of the reward that the filter looks at; `score` is the reward itself."""
    eps: float = Field(default=1e-6, ge=0, le=1e9)
    """A group is informative when its members differ by more than this."""
    policy: str = Field(default="spread", pattern=TASK)
    """Name of the rule that says whether a group is informative: `spread`, `pass_rate_between`, `every`, or one that is installed where the
    supervisors run."""
    policy_args: dict[str, float] = Field(default_factory=dict, max_length=64)
    """Numbers that it takes: `low`, `high` and `pass_at` of `pass_rate_between`."""
    cancel: Annotated[CancelRule, Field(strict=False)] = CancelRule.DEFAULT
    """What happens to groups in flight that nobody needs when the step is complete."""
    surplus: Annotated[Surplus, Field(strict=False)] = Surplus.CARRY
    """What happens to an informative group that no open step has room for."""
    max_staleness: int = Field(default=1, ge=0, le=1_000_000)
    """Most updates of the policy between the oldest version that sampled a group and the one that is trained with it."""
    on_stale: Annotated[OnStale, Field(strict=False)] = OnStale.MARK
    """What happens to a group that is older."""
    group_deadline_s: float = Field(default=0.0, ge=0, le=30 * DAY_S)
    """A group that is open so long after its launch ends with the members it has; 0 = no deadline."""
    loss: LossPolicy = Field(default_factory=dict)
    """What is trained of a member, by why it stopped: `train`, `mask`, `exclude`. Where nothing is said: `mask` for `tokens`, `context` and
    `time`, else `train`."""
    min_members: int = Field(default=0, ge=0, le=1024)
    """Fewest members that must end well; 0 = three quarters of `n`, rounded up."""
    max_redraws: int = Field(default=2, ge=0, le=1000)
    """How often a prompt is drawn again whose group had too few."""
    reward_low: float | None = None
    """A reward below is a fault of the grader; none = no bound."""
    reward_high: float | None = None
    keep_filtered: float = Field(default=0.0, ge=0, le=1)
    """Share of filtered groups, by a hash of their prompts' ids, whose trajectories stay until the ack, to be looked at."""
    version: str = Field(default="", pattern=VERSION)
    """Label of the policy that is expected to sample; empty = any."""
    ahead: int = Field(default=1, ge=0, le=MAX_AHEAD)
    """Steps that are open beyond the one that the trainer has, so that rollouts go on while it trains. Default: `max_staleness`, since a
    group for the furthest of them is that old when it is trained."""
    deterministic: bool = False
    """What is trained follows from run seed, prompts and weights alone, whatever closes first (ADR 11). Sets `ahead` to 0, `min_members`
    to `n` and `cancel` to `all`."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_from_others(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        if data.get("deterministic") is True:
            return {"ahead": 0, "cancel": CancelRule.ALL, "min_members": data.get("n", 0), **data}
        age = data.get("max_staleness")
        if isinstance(age, int) and not isinstance(age, bool):
            return {"ahead": max(0, min(age, MAX_AHEAD)), **data}
        return data

    @model_validator(mode="after")
    def _is_exact(self) -> Self:
        check_exact(self.sampling, "train with temperature and penalties alone; a ValidationRequest may cut")
        return self

    @model_validator(mode="after")
    def _deterministic_fits(self) -> Self:
        if self.deterministic:
            for name, forced in (("ahead", 0), ("cancel", CancelRule.ALL), ("min_members", self.n)):
                if getattr(self, name) != forced:
                    raise ValueError(f"expected {name} to be left out, or {forced}, in a deterministic step, got {getattr(self, name)}")
        return self

    @model_validator(mode="after")
    def _ahead_fits(self) -> Self:
        if self.on_stale is OnStale.DROP and self.ahead > self.max_staleness:
            raise ValueError(
                f"expected ahead ({self.ahead}) to be at most max_staleness ({self.max_staleness}) with on_stale='drop': "
                "what is sampled for the steps beyond could only be dropped"
            )
        return self

    @model_validator(mode="after")
    def _members_fit(self) -> Self:
        if self.min_members > self.n:
            raise ValueError(f"expected min_members ({self.min_members}) to be at most n ({self.n})")
        if self.n == 1 and self.policy == "spread":
            # each group would be filtered, until the data set is used up
            why = "which needs members that differ, got 1; policy='every' filters nothing"
            raise ValueError(f"expected n of at least 2 with policy 'spread', {why}")
        try:
            check_policy(self.policy, self.policy_args)
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        if None not in (self.reward_low, self.reward_high) and self.reward_low >= self.reward_high:  # type: ignore[operator]
            raise ValueError(f"expected reward_low ({self.reward_low}) to be below reward_high ({self.reward_high})")
        return self

    def template(self) -> JobTemplate:
        """The message."""
        return replace(super().template(), deterministic=self.deterministic)

    def spec(self) -> StepSpec:
        """The message."""
        return StepSpec(
            target=self.groups,
            n=self.n,
            over=self.over,
            eps=self.eps,
            component=self.informative_on,
            policy=self.policy,
            policy_args=dict(self.policy_args),
            cancel=self.cancel,
            surplus=self.surplus,
            max_staleness=self.max_staleness,
            on_stale=self.on_stale,
            group_deadline_s=self.group_deadline_s,
            loss={**DEFAULT_LOSS, **self.loss},
            min_members=self.min_members,
            max_redraws=self.max_redraws,
            reward_low=-math.inf if self.reward_low is None else self.reward_low,
            reward_high=math.inf if self.reward_high is None else self.reward_high,
            version=self.version,
            keep_filtered=self.keep_filtered,
            outside=self.reward is RewardSource.OUTSIDE,
            deterministic=self.deterministic,
        )


__all__ = ["StepRequest"]
