"""The verdict on a closed group: who counts in its statistics, and what they say.

- Valid is a member that ended with something the policy did (`ok`, `model_failure`) and has a finite value inside the bounds that its task
  declares. A failure the model caused never escapes its 0: without a reward it counts as 0. Everything else is outside the statistics: what
  infrastructure broke (a NaN or missing reward is that too), what was cancelled, what expired, and what stopped for a reason that the run
  excludes.
- A group with fewer valid members than its step asks for is dropped and its prompt drawn again; after too many times the prompt is dead.
- A group with enough is informative when its step's policy says so. A policy that raises has no say: the group is dropped, with the error
  as the reason. One that this process does not know gives no verdict at all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.messages import CancelReason, Outcome
from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.informative import BUILT_IN, Policy
from pipeline.supervisor.loss_policy import Loss, loss_of
from pipeline.supervisor.staleness import Version, oldest_of
from pipeline.supervisor.step_spec import StepSpec
from pipeline.supervisor.views import ClosedGroup, Member

SCORE = "score"
"""Name of the reward itself as a component."""

UNCOUNTED_REASONS = frozenset(
    (CancelReason.REDUNDANT.value, CancelReason.STALE.value, CancelReason.OVERLOAD.value, CancelReason.ABANDONED.value)
)
"""Cancels that say nothing about the prompt: a group that fell to them is not counted as a draw."""

STALE_MEMBER = f"cancelled ({CancelReason.STALE.value})"
LONGEST_WHY = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the statistics of one group say."""

    verdict: Verdict
    why: str
    values: tuple[float | None, ...]
    """Value of the filter's component a member, in order; None where it is not valid."""
    mean: float | None
    spread: float | None
    """Largest less smallest value."""
    oldest: Version | None
    """Of the versions that sampled valid members; None when none is known."""


def value_of(member: Member, spec: StepSpec) -> float | None:
    """The value of the filter's component, or None when the member is outside the statistics."""
    if member.outcome not in (Outcome.OK, Outcome.MODEL_FAILURE) or loss_of(member.stop, spec.loss) is Loss.EXCLUDE:
        return None
    if spec.component in member.components:
        value = member.components[spec.component]
    elif spec.component == SCORE or (member.outcome is Outcome.MODEL_FAILURE and not member.components):
        value = member.reward
        if value is None and member.outcome is Outcome.MODEL_FAILURE:
            value = 0.0
    else:
        value = None
    # a reward of NaN is a fault of the grader even where the component is sound
    if value is None or not math.isfinite(value) or not (member.reward is None or math.isfinite(member.reward)):
        return None
    return value if spec.reward_low <= value <= spec.reward_high else None


def judge(
    group: ClosedGroup, *, incarnation: int, run_cancelled_for: str = "", policies: Mapping[str, Policy] = BUILT_IN
) -> Judgement | None:
    """The verdict on a closed group; `informative` says nothing yet about a step. None: its policy is needed, and not among `policies`.

    Args:
        incarnation: the run's current one. Groups of an older one are not trained on.
        run_cancelled_for: why the whole run was cancelled; empty = it was not.
    """
    spec = group.spec
    values = tuple(
        value_of(group.members[index], spec) if index in group.members else None for index in range(max(group.want, len(group.members)))
    )
    valid = [value for value in values if value is not None]
    found = _without_policy(group, len(valid), incarnation, run_cancelled_for)
    if found is None:
        policy = policies.get(spec.policy)
        if policy is None:
            return None
        found = _by_policy(group, valid, policy)
    return Judgement(
        verdict=found[0],
        why=found[1],
        values=values,
        mean=math.fsum(valid) / len(valid) if valid else None,
        spread=max(valid) - min(valid) if valid else None,
        oldest=oldest_of(group.members[index].first_version for index, value in enumerate(values) if value is not None),
    )


def _without_policy(group: ClosedGroup, n_valid: int, incarnation: int, run_cancelled_for: str) -> tuple[Verdict, str] | None:
    """The verdict on a group of which the values do not matter; None when they do."""
    if group.incarnation != incarnation:
        return Verdict.CANCELLED, f"incarnation {group.incarnation} of the run ended"
    if group.given_up:
        return Verdict.CANCELLED, group.given_up
    if run_cancelled_for:
        return Verdict.CANCELLED, f"run cancelled ({run_cancelled_for})"
    fewest = min(group.spec.fewest, group.want)
    if n_valid >= fewest and n_valid:
        return None
    reason, uncounted = _why_invalid(group)
    why = f"{n_valid} of {group.want} valid, {fewest} needed: {reason}"
    if uncounted:
        return (Verdict.STALE if reason.startswith(STALE_MEMBER) else Verdict.CANCELLED), why
    return _dropped(group), why


def _by_policy(group: ClosedGroup, valid: Sequence[float], policy: Policy) -> tuple[Verdict, str]:
    spec = group.spec
    try:
        informative = bool(policy(valid, spec))
    except Exception as error:  # noqa: BLE001  # a policy is somebody else's code: what it raises is about this group only
        return _dropped(group), f"policy {spec.policy} raised {type(error).__name__}: {error}"[:LONGEST_WHY]
    if informative:
        return Verdict.INFORMATIVE, ""
    return Verdict.FILTERED, f"all {valid[0]:.6g}" if max(valid) == min(valid) else f"not informative by {spec.policy} of {spec.component}"


def _dropped(group: ClosedGroup) -> Verdict:
    return Verdict.DEAD if group.redraws >= group.spec.max_redraws else Verdict.DROPPED


def _why_invalid(group: ClosedGroup) -> tuple[str, bool]:
    """The commonest reason of members outside the statistics, and whether it says nothing about the prompt."""
    reasons: Counter[tuple[str, bool]] = Counter()
    for index in range(group.want):
        member = group.members.get(index)
        if member is None:
            reasons[("missing", False)] += 1
        elif value_of(member, group.spec) is None:
            if member.outcome in (Outcome.OK, Outcome.MODEL_FAILURE):
                excluded = loss_of(member.stop, group.spec.loss) is Loss.EXCLUDE
                reasons[(f"excluded ({member.stop})" if excluded else "no usable reward", False)] += 1
            elif member.outcome is Outcome.CANCELLED:
                reasons[(f"cancelled ({member.reason})", member.reason in UNCOUNTED_REASONS)] += 1
            else:
                reasons[(member.outcome.value, False)] += 1
    (why, uncounted), count = reasons.most_common(1)[0]
    return f"{why} {count}", uncounted
