"""How much of each stage a node has: slots, spread over processes; and which processes stay when that changes.

Invariant: a change never ends a process whose slots are still wanted, so that what runs in it goes on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from pipeline.errors import InvalidRequest
from pipeline.messages import Stage
from workers.settings import MOST_DEFAULT_SLOTS, SLOTS_A_CORE

MOST_SLOTS = 65_536
MOST_SLOTS_OF_A_PROCESS = 4096
MOST_PROCESSES = 256
_SIZE = re.compile(r"(?:(\d{1,5})x)?(\d{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Size:
    """What a node is to have of one stage."""

    slots: int
    """Of the stage; with `processes`, of each."""
    processes: int | None = None
    """None: as many as the slots need."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `96` (slots, in as many processes as they need) or `3x32` (processes, and slots of each).

        Raises:
            InvalidRequest: it is neither, or out of bounds.
        """
        found = _SIZE.fullmatch(text.strip())
        if found is None:
            raise InvalidRequest(f"{text!r} is no size: expected slots, such as 96, or processes and slots of each, such as 3x32")
        slots = int(found[2])
        if found[1] is None:
            if slots > MOST_SLOTS:
                raise InvalidRequest(f"a node has at most {MOST_SLOTS:,} slots of a stage, got {slots:,}")
            return cls(slots)
        processes = int(found[1])
        if not (processes <= MOST_PROCESSES and 1 <= slots <= MOST_SLOTS_OF_A_PROCESS):
            raise InvalidRequest(
                f"{text!r}: expected at most {MOST_PROCESSES} processes of 1 to {MOST_SLOTS_OF_A_PROCESS:,} slots; 0 stands for none"
            )
        return cls(slots, processes)

    @property
    def total(self) -> int:
        """Slots of all processes."""
        return self.slots * (1 if self.processes is None else self.processes)

    def __str__(self) -> str:
        return str(self.slots) if self.processes is None else f"{self.processes}x{self.slots}"


@dataclass(frozen=True, slots=True)
class Change:
    """Which processes of a stage end, and which begin, by their index."""

    stop: tuple[int, ...]
    start: Mapping[int, int]
    """Index -> slots."""


def default_size(stage: Stage, cores: int) -> Size:
    """By the cores of the node, as the default of a single worker, without its bound on one process."""
    return Size(SLOTS_A_CORE[stage] * cores)


def plan_change(stage: Stage, size: Size, now: Mapping[int, int], taken: Collection[int]) -> Change:
    """Which processes have to go and to come, so that a stage has its size.

    Args:
        now: index -> slots of the processes that take jobs.
        taken: all indexes in use; those of processes that drain still have their names.
    """
    if size.processes is not None:
        kept = sorted(index for index, slots in now.items() if slots == size.slots)[: size.processes]
        new = [size.slots] * (size.processes - len(kept))
    else:
        kept, left = [], size.slots
        for index, slots in sorted(now.items(), key=lambda item: (-item[1], item[0])):
            if slots <= left:
                kept.append(index)
                left -= slots
        new = _spread(left, math.ceil(left / MOST_DEFAULT_SLOTS[stage]))
    free = (index for index in range(len(new) + len(taken)) if index not in taken)
    return Change(tuple(sorted(now.keys() - set(kept))), dict(zip(free, new, strict=False)))


def _spread(slots: int, processes: int) -> list[int]:
    return [slots // processes + (number < slots % processes) for number in range(processes)]
