"""The configuration of a dapo case as a request of the trainer: where a case fixes a policy, that policy is asked for."""

from __future__ import annotations

from pipeline.supervisor.step_spec import CancelRule, OnStale, Surplus
from tests.cases.case import BadCase, Json
from trainer_client import StepRequest

TIME_SCALE = 0.25
"""Seconds of a case are this long: enough for a loaded machine to launch and report, short enough to wait for."""
ALL_AT_ONCE = 100.0
"""Over-sampling of cases that say nothing of it: their groups are in flight together."""
ON_TARGET = {"cancel_open": CancelRule.ALL, "carry": CancelRule.CARRY, "finish_open": CancelRule.CARRY, "default": CancelRule.DEFAULT}


def request_of(config: Json) -> StepRequest:
    """What the trainer asks for.

    Raises:
        BadCase: a policy that the product has no name for.
    """
    n = int(config.get("group_size", 4))
    low, high = config.get("reward_range") or (None, None)
    policy, args = _filter(config)
    return StepRequest(
        task="math",
        groups=int(config.get("target_groups") or config.get("request_groups") or 1),
        n=n,
        over=float(config.get("oversample", ALL_AT_ONCE)),
        eps=float(config.get("eps", 1e-6)),
        policy=policy,
        policy_args=args,
        cancel=_on_target(config),
        surplus=Surplus(config.get("surplus", "carry")),
        max_staleness=int(config.get("max_staleness", 1)),
        on_stale=OnStale(config.get("on_stale", "drop")),
        group_deadline_s=float(config.get("group_timeout_s", 0)) * TIME_SCALE,
        loss=config.get("loss", {}),
        min_members=_fewest(config, n),
        max_redraws=int(config.get("max_redraws", 0)),
        reward_low=None if low is None else float(low),
        reward_high=None if high is None else float(high),
        max_failed=int(config.get("max_attempts", 3)) - 1,
        ahead=0,
        wall_s=3600.0,
        expected_bytes=1024,
    )


def _filter(config: Json) -> tuple[str, dict[str, float]]:
    said = str(config.get("filter", "reward_std>eps")).replace(" ", "")
    if said in ("reward_std>eps", "reward_std>0", "spread"):
        return "spread", {}
    if said in ("none", "all"):
        return "every", {}
    if said.startswith("pass_rate"):
        low, high = config.get("pass_rate", (0.05, 0.95))
        return "pass_rate_between", {"low": float(low), "high": float(high), "pass_at": float(config.get("pass_at", 0.5))}
    raise BadCase(f"no policy for the filter {said!r}")


def _fewest(config: Json, n: int) -> int:
    said = config.get("on_failed", "")
    if said == "use_survivors":
        return int(config.get("min_survivors", 2))
    return n if said in ("drop_group", "drop") else 0


def _on_target(config: Json) -> CancelRule:
    """What is cancelled at the target.

    A case that cancels what is open says which jobs are at work then (`jobs_running`). Where none are, results that come after the target
    are of groups that went on.
    """
    said = str(config.get("on_target", "default"))
    if said not in ON_TARGET:
        raise BadCase(f"no policy for on_target {said!r}; there are: {', '.join(ON_TARGET)}")
    return CancelRule.CARRY if said == "cancel_open" and "jobs_running" not in config else ON_TARGET[said]
