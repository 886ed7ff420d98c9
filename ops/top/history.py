"""What the last looks of `rollstream top` found, as rates and levels over time, each a row of small blocks.

A row is scaled to its own largest value. What cannot be told (before the second look, or where a counter fell because a run was
forgotten) is a gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ops.look import Look
from pipeline.messages import Stage

KEPT = 48
"""Looks, a column each: with a name before and two numbers behind it fits 80 columns."""
BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One quantity over the looks that are kept, the newest last."""

    name: str
    values: tuple[float | None, ...]
    """None = it cannot be told."""


class History:
    """The last looks. Not of one moment each: a look takes some milliseconds."""

    def __init__(self) -> None:
        self._before: tuple[float, Mapping[str, int]] | None = None
        self._values: dict[str, deque[float | None]] = {}

    def add(self, found: Look, *, at_s: float) -> None:
        """Another look.

        Args:
            at_s: when, by a clock that only grows.
        """
        counted = {f"{stage.value} jobs/s": found.stages[stage].ended for stage in Stage}
        counted["tokens/s"] = sum(sum(run.tokens.values()) for run in found.runs)
        levels = {
            "backlog": sum(stage.waiting for stage in found.stages.values()) + sum(run.waiting for run in found.runs) + found.delayed,
            "unread": sum(run.unread for run in found.runs),
        }
        rates = {name: self._rate(name, count, at_s) for name, count in counted.items()}
        self._before = at_s, counted
        for name, value in (rates | levels).items():
            self._values.setdefault(name, deque(maxlen=KEPT)).append(value)

    def rows(self) -> list[Row]:
        """Jobs that each stage ended a second, jobs that wait, results that nobody acknowledged, tokens a second."""
        names = (*(f"{stage.value} jobs/s" for stage in Stage), "backlog", "unread", "tokens/s")
        return [Row(name=name, values=tuple(self._values.get(name, ()))) for name in names]

    def _rate(self, name: str, count: int, at_s: float) -> float | None:
        if self._before is None:
            return None
        before_s, counted = self._before
        grown = count - counted[name]
        return grown / (at_s - before_s) if grown >= 0 and at_s > before_s else None


def sparkline(values: Sequence[float | None]) -> str:
    """A block a value: the lowest is 0 and the highest the largest of them; a blank where there is none."""
    most = max((value for value in values if value is not None), default=0.0)
    return "".join(" " if value is None else BLOCKS[_height(value, most)] for value in values)


def _height(value: float, most: float) -> int:
    """Anything above 0 stands out from it."""
    if value <= 0 or most <= 0:
        return 0
    return max(1, round(value / most * (len(BLOCKS) - 1)))
