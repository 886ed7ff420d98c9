"""The steps that a trainer was given, acked or not: what it has had stands, whatever Redis knows of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipeline.scripts.trainer_calls import Done, HadGroup
from pipeline.supervisor.actions import Verdict
from trainer_client.records import GroupRecord, StepRecord

REMEMBERED_STEPS = 64
"""More than a window of lost writes has: seconds, where servers are well."""
_STATES: Mapping[Verdict, Done] = {Verdict.INFORMATIVE: "trained", Verdict.FILTERED: "filtered", Verdict.DEAD: "dead"}


@dataclass(frozen=True, slots=True)
class HandedStep:
    """One of them."""

    index: int
    entry: str
    """Of its record in the results stream: it names this step among all that were ever reached under its index."""
    groups: tuple[HadGroup, ...]
    """Groups whose prompts are done with in it."""


class Handed:
    """The newest `REMEMBERED_STEPS` of them."""

    def __init__(self) -> None:
        self.last = -1
        """Index of the last one; -1 before the first."""
        self.steps: dict[int, HandedStep] = {}
        """By index, in order."""
        self.has_forgotten = False
        """Whether there were more."""
        self._groups: dict[str, int] = {}

    def add(self, record: StepRecord, accounted: Iterable[GroupRecord]) -> None:
        """One more was given out.

        Args:
            accounted: records of all groups that are accounted to it.
        """
        groups = [group for group in accounted if group.verdict in _STATES]
        had = tuple(HadGroup(group.group, group.prompt, group.draw, _STATES[group.verdict]) for group in groups)
        self.steps[record.index] = HandedStep(record.index, record.entry, had)
        self._groups.update((group, record.index) for group in record.groups)
        self.last = max(self.last, record.index)
        while len(self.steps) > REMEMBERED_STEPS:
            self.has_forgotten = True
            oldest = next(iter(self.steps))
            gone = self.steps.pop(oldest)
            for each in gone.groups:
                self._groups.pop(each.id, None)

    def __contains__(self, group: str) -> bool:
        """Whether a group is among those to train of one of them."""
        return group in self._groups
