"""What awaits a reward from outside, as the results stream says, and who wants to hear of it.

Invariants:
  1. A job stands here from its `awaiting` record until its end is read; a group from its `held` record until it closes or its hook
     reported.
  2. A reader is given each of them once. One that waits again with another trajectory (Redis lost its last second, the job ran again)
     is given again.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from trainer_client.arrivals import Arrivals, Readers
from trainer_client.records import AwaitingRecord, HeldRecord


class OutsideInbox:
    """State of one run."""

    def __init__(self) -> None:
        self.awaiting: dict[str, AwaitingRecord] = {}
        self.held: dict[str, HeldRecord] = {}
        self._awaiting_readers: Readers[AwaitingRecord] = Readers()
        self._held_readers: Readers[HeldRecord] = Readers()

    def take_awaiting(self, record: AwaitingRecord) -> None:
        """A job awaits its reward."""
        known = self.awaiting.get(record.job)
        if known is None or known.run_attempt != record.run_attempt:
            self.awaiting[record.job] = record
            self._awaiting_readers.put(record)

    def take_held(self, record: HeldRecord) -> None:
        """A group waits for its hook."""
        if record.group not in self.held:
            self.held[record.group] = record
            self._held_readers.put(record)

    def job_ended(self, job: str) -> AwaitingRecord | None:
        """A job waits no more."""
        return self.awaiting.pop(job, None)

    def group_closed(self, group: str) -> HeldRecord | None:
        """A group waits no more."""
        return self.held.pop(group, None)

    def awaiting_reader(self) -> AbstractContextManager[Arrivals[AwaitingRecord]]:
        """What waits now, and what begins to wait while the block runs."""
        return self._awaiting_readers.join(self.awaiting.values())

    def held_reader(self) -> AbstractContextManager[Arrivals[HeldRecord]]:
        """The same for held groups."""
        return self._held_readers.join(self.held.values())
