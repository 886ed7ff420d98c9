"""Labels of weights, as engines keep them: `<run>/<incarnation>.<number>`.

Two runs, or two incarnations of one, never have a label in common, so a server that was another's is known by its label. While a trainer
changes weights they bear `<run>/updating-<holder>`, which nothing allows; the pool calls those so, too, whose label it does not believe
(`unproven_label`). In records a label stands without its run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ANY = ""
"""What a run without weight updates allows: whatever the server says."""
_LABEL = re.compile(r"([^/]+)/(\d+)\.(\d+)\Z")


def label(run: str, incarnation: int, number: int) -> str:
    """The label of a policy version at the engines."""
    return f"{run}/{incarnation}.{number}"


def updating_label(run: str, holder: str) -> str:
    """The label of weights that `holder` is changing just now."""
    return f"{run}/updating-{holder}"


def unproven_label(run: str) -> str:
    """What the pool says (`pool_looked`) of a server that started anew as a trainer labelled it, and bears that label."""
    return updating_label(run, "unproven")


def is_updating(label: str) -> bool:
    """Whether it is on weights that somebody is changing."""
    return "/updating-" in label


def number_of(label: str, run: str) -> tuple[int, int] | None:
    """Incarnation and number of one of the run's labels; None for any other word."""
    found = _LABEL.match(label)
    return (int(found[2]), int(found[3])) if found and found[1] == run else None


def label_in_record(label: str, run: str) -> str:
    """As it stands in a record of that run."""
    return label.removeprefix(f"{run}/")


@dataclass(frozen=True, slots=True)
class AllowedLabels:
    """What a run allows at one moment."""

    lowest: str = ANY
    highest: str = ANY
    """Another than `lowest` only after an update whose trainer died: some servers have the new weights already."""

    @property
    def any(self) -> bool:
        """Whether every label will do: the run has no weight updates."""
        return self.lowest == ANY

    def until(self, later: AllowedLabels) -> AllowedLabels:
        """What tokens of a call may bear that began at this moment and ended at a later one."""
        return AllowedLabels(self.lowest, later.highest) if not self.any and not later.any else AllowedLabels()

    def allows(self, label: str, run: str) -> bool:
        """Whether tokens with this label may be believed: it is one of the two, or lies between them (updates follow each other)."""
        if is_updating(label):
            return False
        if self.any or label in (self.lowest, self.highest):
            return True
        lowest, number, highest = (number_of(word, run) for word in (self.lowest, label, self.highest))
        return lowest is not None and number is not None and highest is not None and lowest <= number <= highest
