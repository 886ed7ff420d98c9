"""Whether a closed group is worth training on: who counts in its statistics, and what they say.

- Valid is a member that ended with something the policy did (`ok`, `model_failure`) and has a finite value inside the bounds that its task
  declares. A failure the model caused never escapes its 0: without a reward it counts as 0. Everything else is outside the statistics: what
  infrastructure broke (a NaN or missing reward is that too), what was cancelled, what expired.
- A group with fewer valid members than its step asks for is dropped and its prompt drawn again; after too many times the prompt is dead.
- A group with enough is informative when its step's policy says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pipeline.errors import InvalidRequest
from pipeline.messages import CancelReason, Outcome
from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.step_spec import StepSpec
from pipeline.supervisor.views import ClosedGroup, Member

SCORE = "score"
"""Name of the reward itself as a component."""

UNCOUNTED_REASONS = frozenset((CancelReason.REDUNDANT.value, CancelReason.STALE.value, CancelReason.OVERLOAD.value))
"""Cancels that say nothing about the prompt: a group that fell to them is not counted as a draw."""

Policy = Callable[[Sequence[float], StepSpec], bool]
"""Whether the values of a group's valid members (at least one) carry a signal."""


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


def spread(values: Sequence[float], spec: StepSpec) -> bool:
    """Largest and smallest value are further apart than `eps`.

    The range and not the standard deviation: it is exact, so equal values have none.
    """
    return max(values) - min(values) > spec.eps


POLICIES: Mapping[str, Policy] = {"spread": spread}
"""Informativeness policies by name."""


def find_policy(name: str) -> Policy:
    """The policy of that name.

    Raises:
        InvalidRequest: there is none.
    """
    if name not in POLICIES:
        raise InvalidRequest(f"expected one of {', '.join(sorted(POLICIES))}, got {name!r}", field="policy")
    return POLICIES[name]


def value_of(member: Member, spec: StepSpec) -> float | None:
    """The value of the filter's component, or None when the member is outside the statistics."""
    if member.outcome not in (Outcome.OK, Outcome.MODEL_FAILURE):
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


def judge(group: ClosedGroup, *, incarnation: int, run_cancelled_for: str = "") -> Judgement:
    """The verdict on a closed group; `informative` says nothing yet about a step.

    Args:
        incarnation: the run's current one. Groups of an older one are not trained on.
        run_cancelled_for: why the whole run was cancelled; empty = it was not.
    """
    spec = group.spec
    values = tuple(
        value_of(group.members[index], spec) if index in group.members else None for index in range(max(group.want, len(group.members)))
    )
    valid = [value for value in values if value is not None]
    mean = math.fsum(valid) / len(valid) if valid else None
    width = max(valid) - min(valid) if valid else None
    verdict, why = _verdict(group, valid, incarnation, run_cancelled_for)
    return Judgement(verdict=verdict, why=why, values=values, mean=mean, spread=width)


def _verdict(group: ClosedGroup, valid: Sequence[float], incarnation: int, run_cancelled_for: str) -> tuple[Verdict, str]:
    spec = group.spec
    if group.incarnation != incarnation:
        return Verdict.CANCELLED, f"incarnation {group.incarnation} of the run ended"
    if group.given_up:
        return Verdict.CANCELLED, group.given_up
    if run_cancelled_for:
        return Verdict.CANCELLED, f"run cancelled ({run_cancelled_for})"
    fewest = min(spec.fewest, group.want)
    if len(valid) < fewest or not valid:
        why, uncounted = _why_invalid(group)
        why = f"{len(valid)} of {group.want} valid, {fewest} needed: {why}"
        if uncounted:
            return Verdict.CANCELLED, why
        return (Verdict.DEAD if group.redraws >= spec.max_redraws else Verdict.DROPPED), why
    if find_policy(spec.policy)(valid, spec):
        return Verdict.INFORMATIVE, ""
    return Verdict.FILTERED, f"all {valid[0]:.6g}" if max(valid) == min(valid) else f"{spec.policy} of {spec.component} too small"


def _why_invalid(group: ClosedGroup) -> tuple[str, bool]:
    """The commonest reason of members outside the statistics, and whether it says nothing about the prompt."""
    reasons: Counter[tuple[str, bool]] = Counter()
    for index in range(group.want):
        member = group.members.get(index)
        if member is None:
            reasons[("missing", False)] += 1
        elif value_of(member, group.spec) is None:
            if member.outcome in (Outcome.OK, Outcome.MODEL_FAILURE):
                reasons[("no usable reward", False)] += 1
            elif member.outcome is Outcome.CANCELLED:
                reasons[(f"cancelled ({member.reason})", member.reason in UNCOUNTED_REASONS)] += 1
            else:
                reasons[(member.outcome.value, False)] += 1
    (why, uncounted), count = reasons.most_common(1)[0]
    return f"{why} {count}", uncounted
