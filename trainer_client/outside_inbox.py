"""What awaits a reward from outside, as the results stream says, and who wants to hear of it.

Invariants:
  1. A job stands here from its `awaiting` record until its end is read; a group from its `held` record until it closes or its hook
     reported.
  2. A reader is given each of them once. One that waits again with another trajectory (Redis lost its last second, the job ran again)
     is given again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from trainer_client.records import AwaitingRecord, HeldRecord

R = TypeVar("R")


@dataclass(slots=True)
class Arrivals(Generic[R]):
    """Records that one reader has not been given yet."""

    waiting: deque[R] = field(default_factory=deque)
    arrived: asyncio.Future[None] | None = None

    def put(self, record: R) -> None:
        self.waiting.append(record)
        if self.arrived is not None and not self.arrived.done():
            self.arrived.set_result(None)

    def arrival(self) -> asyncio.Future[None]:
        """Resolved when there is something to take."""
        self.arrived = asyncio.get_running_loop().create_future()
        if self.waiting:
            self.arrived.set_result(None)
        return self.arrived


class OutsideInbox:
    """State of one run."""

    def __init__(self) -> None:
        self.awaiting: dict[str, AwaitingRecord] = {}
        self.held: dict[str, HeldRecord] = {}
        self._awaiting_readers: list[Arrivals[AwaitingRecord]] = []
        self._held_readers: list[Arrivals[HeldRecord]] = []

    def take_awaiting(self, record: AwaitingRecord) -> None:
        """A job awaits its reward."""
        known = self.awaiting.get(record.job)
        if known is None or known.run_attempt != record.run_attempt:
            self.awaiting[record.job] = record
            for reader in self._awaiting_readers:
                reader.put(record)

    def take_held(self, record: HeldRecord) -> None:
        """A group waits for its hook."""
        if record.group not in self.held:
            self.held[record.group] = record
            for reader in self._held_readers:
                reader.put(record)

    def job_ended(self, job: str) -> AwaitingRecord | None:
        """A job waits no more."""
        return self.awaiting.pop(job, None)

    def group_closed(self, group: str) -> HeldRecord | None:
        """A group waits no more."""
        return self.held.pop(group, None)

    @contextmanager
    def awaiting_reader(self) -> Iterator[Arrivals[AwaitingRecord]]:
        """What waits now, and what begins to wait while the block runs."""
        reader = Arrivals(deque(self.awaiting.values()))
        self._awaiting_readers.append(reader)
        try:
            yield reader
        finally:
            self._awaiting_readers.remove(reader)

    @contextmanager
    def held_reader(self) -> Iterator[Arrivals[HeldRecord]]:
        """The same for held groups."""
        reader = Arrivals(deque(self.held.values()))
        self._held_readers.append(reader)
        try:
            yield reader
        finally:
            self._held_readers.remove(reader)
