"""What a reward file says. Read as data: tests wrote it where the agent was before."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field


class UnreadableReward(ValueError):
    """It is no reward; says why."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward, and the parts it came with."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)


def reward_of(as_json: str | None, as_text: str | None, *, key: str = "") -> Reward:
    """The reward of `reward.json`, else of `reward.txt`.

    Args:
        key: which part of several is the reward; empty = `reward`, or the only one.

    Raises:
        UnreadableReward: neither is there, or it is no finite number.
    """
    if as_json is not None:
        try:
            found: object = json.loads(as_json)
        except (ValueError, RecursionError) as broken:
            raise UnreadableReward(f"reward.json is no JSON: {broken}") from broken
        if not isinstance(found, dict):
            return Reward(_number(found, "reward.json"))
        parts = {str(name): _number(value, f"{name} of reward.json") for name, value in found.items()}
        chosen = key or ("reward" if "reward" in parts else next(iter(parts)) if len(parts) == 1 else "")
        if chosen not in parts:
            raise UnreadableReward(f"reward.json has {', '.join(parts) or 'nothing'}: name one of them in the option reward_key")
        return Reward(parts[chosen], parts)
    if as_text is not None:
        try:
            return Reward(_number(float(as_text), "reward.txt"))
        except ValueError as broken:
            raise UnreadableReward(f"reward.txt holds no number: {as_text[:80]!r}") from broken
    raise UnreadableReward("the tests wrote neither reward.txt nor reward.json")


def _number(value: object, what: str) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise UnreadableReward(f"{what} is {value!r:.80}, expected a finite number")
    return float(value)
