"""Whether the rewards of a group teach something: informativeness policies by name.

Built-in ones are here. Own ones are callables of the values and the step's specification; `installed_policies` finds them, in supervisors
and nowhere else, so what a trainer installs need not have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from pipeline.errors import InvalidRequest
from pipeline.supervisor.step_spec import StepSpec

PASS_AT, PASS_LOW, PASS_HIGH = 0.5, 0.05, 0.95
"""Defaults of `pass_rate_between`: a group that is nearly always or nearly never right teaches little."""

Policy = Callable[[Sequence[float], StepSpec], bool]
"""Whether the values of a group's valid members (at least one) carry a signal."""


def spread(values: Sequence[float], spec: StepSpec) -> bool:
    """Largest and smallest value are further apart than `eps`.

    The range and not the standard deviation: it is exact, so equal values have none.
    """
    return max(values) - min(values) > spec.eps


def pass_rate_between(values: Sequence[float], spec: StepSpec) -> bool:
    """The share of values of at least `pass_at` is within `low` and `high`, both included."""
    args = spec.policy_args
    rate = sum(value >= args.get("pass_at", PASS_AT) for value in values) / len(values)
    return args.get("low", PASS_LOW) <= rate <= args.get("high", PASS_HIGH)


def every(values: Sequence[float], spec: StepSpec) -> bool:
    """No filter: each group with enough valid members is trained on."""
    return True


BUILT_IN: Mapping[str, Policy] = MappingProxyType({"spread": spread, "pass_rate_between": pass_rate_between, "every": every})
ARGUMENTS: Mapping[str, frozenset[str]] = {
    "spread": frozenset(),
    "pass_rate_between": frozenset(("low", "high", "pass_at")),
    "every": frozenset(),
}


def check_policy(name: str, args: Mapping[str, float]) -> None:
    """Checks the arguments of a built-in policy; of any other only its supervisor knows what it takes.

    Raises:
        InvalidRequest: they can never be right.
    """
    known = ARGUMENTS.get(name)
    if known is None:
        return
    unknown = sorted(set(args) - known)
    if unknown:
        takes = f"expected {', '.join(sorted(known))}" if known else "expected none"
        raise InvalidRequest(f"{takes} for policy {name!r}, got {', '.join(unknown)}", field="policy_args")
    low, high = args.get("low", PASS_LOW), args.get("high", PASS_HIGH)
    if not 0.0 <= low <= high <= 1.0:
        raise InvalidRequest(f"expected 0 <= low <= high <= 1, got low={low:g} and high={high:g}", field="policy_args")


__all__ = ["BUILT_IN", "Policy", "check_policy", "every", "pass_rate_between", "spread"]
