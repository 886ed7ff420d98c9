"""What the results stream has said and nobody has acked yet, by id; and who waits for what.

Invariants:
  1. A job, group or step is here once, however often its record is read: a stream that is read again from its beginning changes nothing.
  2. What was acked does not come back. A later record of it (Redis lost its last second and the job ran again) is set aside to be dropped.
  3. Each reader of single results is given each of them once, in the order of their arrival.
  4. A step is given out when all its groups and their members are here. One that an earlier incarnation finished counts only when the
     ledger said that it stands (`accept_older`): otherwise the trainer went back, and it is done anew. A record of before the trainer went
     back never counts: the one that the ledger speaks of may stand further on in the stream.
  5. What was lost (the stream had it, and has it no more) is forgotten, unless the trainer was given it: that stays as it was given, and
     what comes of it later changes no more than where its record stands. A single result that was given and not looked into yet is renewed.
  6. A group that joined a step which was given out without it is another history's: it is neither given out nor let go of, until the ledger
     was restored (`history.py`).
  7. After a lost contact a step is given out when the stream was read anew, and the ledger was compared after that: it may have groups of
     one that was given out before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Literal, TypeVar

from pipeline.keys import job_id, validation_serial
from pipeline.messages import JobResult, Outcome
from pipeline.supervisor.actions import Verdict
from trainer_client.arrivals import Arrivals, Readers
from trainer_client.handed import Handed
from trainer_client.outside_inbox import OutsideInbox
from trainer_client.records import AwaitingRecord, GroupRecord, HeldRecord, Note, Record, StepRecord
from trainer_client.results import Result

REMEMBERED = 100_000
"""Acked ids that a client knows; older ones are in the tombstones of Redis."""

Kind = Literal["job", "group", "step"]
K = TypeVar("K")
V = TypeVar("V")


class Inbox:
    """State of the results of one run.

    Args:
        incarnation: ours.
        make_result: gives a record its way to its bodies.
        on_group: told of each group that is new, with the records of its members; what it returns is raised where a step is awaited.
        on_dropped: told of a group that is dropped without an ack, since no step has it that is still to be acked.
        on_doubt: told when what the trainer was given is to be compared with the ledger.
        runs_again: asked about a single job whose end was lost: whether it will end anew.
        base: incarnation in which the trainer went back last; steps that one before it finished did not happen.
    """

    def __init__(
        self,
        incarnation: int,
        make_result: Callable[[JobResult], Result],
        on_dropped: Callable[[GroupRecord], None],
        on_group: Callable[[GroupRecord, Iterable[JobResult]], Exception | None] = lambda _group, _members: None,
        *,
        on_doubt: Callable[[], None] = lambda: None,
        runs_again: Callable[[str], bool] = lambda _job: False,
        base: int = 0,
    ) -> None:
        self.handed = Handed()
        self.incarnation = incarnation
        self.base = base
        self.jobs: dict[str, Result] = {}
        self.groups: dict[str, GroupRecord] = {}
        self.steps: dict[int, StepRecord] = {}
        self.open_validations: set[int] = set()
        """Serials of validations that are not acked; what comes for another one is nobody's."""
        self.set_aside: dict[str, tuple[Kind, str]] = {}
        """Entry -> kind and id of what nobody will ask for; the keeper drops it."""
        self.moved = asyncio.Event()
        """Set when the ledger moved (the reserve may have room) or something was set aside. Whoever acts on it clears it."""
        self.outside = OutsideInbox()
        self._make_result = make_result
        self._on_dropped = on_dropped
        self._on_group = on_group
        self._on_doubt = on_doubt
        self._runs_again = runs_again
        self._doubted: dict[str, GroupRecord] = {}
        self.readings = 0
        """How often the stream was read from its beginning after contact was lost."""
        self._is_unread = False
        self._is_unsure = False
        self._untold: Exception | None = None
        self._acked: dict[str, None] = {}
        self._acked_step = -1
        self._accounted: dict[int, list[GroupRecord]] = {}
        self._older: set[int] = set()
        self._empty: set[int] = set()
        self._job_waiters: dict[str, set[asyncio.Future[Result]]] = {}
        self._step_waiters: dict[int, set[asyncio.Future[StepRecord]]] = {}
        self._single_readers: Readers[Result] = Readers()

    # ---- what arrives

    def take(self, record: Record) -> None:
        """Takes in a record; one that is known changes nothing."""
        match record:
            case JobResult():
                self._take_job(record)
            case GroupRecord():
                self._take_group(record)
            case StepRecord():
                self._take_step(record)
            case AwaitingRecord():
                if record.job in self.jobs or record.job in self._acked or record.group in self._acked:
                    self._put_aside(record.entry, "step", record.job)
                else:
                    self.outside.take_awaiting(record)
            case HeldRecord():
                if record.group in self.groups or record.group in self._acked:
                    self._put_aside(record.entry, "step", record.group)
                else:
                    self.outside.take_held(record)
            case Note():
                self._put_aside(record.entry, "step", record.what)

    def _take_job(self, record: JobResult) -> None:
        awaited = self.outside.job_ended(record.job)
        if awaited is not None and record.outcome is Outcome.INFRA_FAILURE:
            self._put_aside(awaited.entry, "step", record.job)  # of one whose hash was lost nobody else would
        known = self.jobs.get(record.job)
        if known is not None:
            if known.record.entry != record.entry and not known.was_read and record.group not in self.handed:
                known.renew(record)
                for future in self._job_waiters.pop(record.job, ()):
                    _resolve(future, known)
        elif record.job in self._acked or record.group in self._acked:
            self._put_aside(record.entry, "job", record.job)
        elif self._is_of_no_open_validation(record.group):
            self._put_aside(record.entry, "group", record.group)
        else:
            result = self.jobs[record.job] = self._make_result(record)
            for future in self._job_waiters.pop(record.job, ()):
                _resolve(future, result)
            if record.group:
                self._give_out_steps()
            else:
                self._single_readers.put(result)

    def _is_of_no_open_validation(self, group: str) -> bool:
        serial = validation_serial(group)
        return serial is not None and serial not in self.open_validations

    def _take_group(self, record: GroupRecord) -> None:
        self.outside.group_closed(record.group)
        known = self.groups.get(record.group)
        if record.group in self._acked:
            self._put_group_aside(record)
        elif known is not None and record.group in self.handed:
            self.groups[record.group] = replace(known, entry=record.entry)
        elif self._contradicts(record):
            self._doubted[record.group] = record
            self._on_doubt()
        elif self._is_nobodys(record):
            self._put_group_aside(record)
        elif known is None or known.entry != record.entry:
            if known is not None:
                self._forget_group(known)
            self.groups[record.group] = record
            if record.step is not None:
                self.accounted_to(record.step).append(record)
            error = self._on_group(record, [result.record for result in self._members(record)])
            if error is not None:
                self._tell(error)
            self.moved.set()
            self._give_out_steps()

    def _tell(self, error: Exception) -> None:
        """Raises where a step is awaited, or where the next one will be."""
        waiting = [future for futures in self._step_waiters.values() for future in futures if not future.done()]
        self._untold = None if waiting else error
        for future in waiting:
            future.set_exception(error)

    def _members(self, group: GroupRecord) -> list[Result]:
        found = (self.jobs.get(job_id(group.group, member)) for member in range(group.want))
        return [result for result in found if result is not None]

    def accounted_to(self, index: int) -> list[GroupRecord]:
        """Groups that were accounted to a step, trained or not, in the order of their records. It grows while they come, and stays as it
        is with whoever holds it when the step is acked."""
        return self._accounted.setdefault(index, [])

    def _is_nobodys(self, group: GroupRecord) -> bool:
        """Whether no step that is still to come, or to be acked, has this group."""
        if group.step is None:
            return group.verdict is not Verdict.INFORMATIVE
        return group.step <= self._acked_step or group.step in self._empty

    def _contradicts(self, group: GroupRecord) -> bool:
        """Whether it joined a step that was given out without it."""
        joined = group.step is not None and group.verdict is Verdict.INFORMATIVE and group.step in self.handed.steps
        return joined and group.group not in self.handed

    def _put_group_aside(self, record: GroupRecord) -> None:
        self._on_dropped(record)
        self._drop_members(record)
        self._put_aside(record.entry, "group", record.group)

    def _take_step(self, record: StepRecord) -> None:
        known = self.steps.get(record.index)
        if record.index <= self._acked_step or record.incarnation < self.base:
            self._put_aside(record.entry, "step", str(record.index))
        elif known is None or known.entry != record.entry:
            if known is not None:
                self._put_aside(known.entry, "step", str(record.index))
            self.steps[record.index] = record
            self.moved.set()
            self._give_out_steps()

    def _put_aside(self, entry: str, kind: Kind, unit: str) -> None:
        self.set_aside[entry] = (kind, unit)
        self.moved.set()

    # ---- who waits

    def job_future(self, job: str) -> asyncio.Future[Result]:
        """Resolved with the result of a job, now or when it comes."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if job in self.jobs and not self.jobs[job].is_lost:
            future.set_result(self.jobs[job])
        else:
            _join(self._job_waiters, job, future)
        return future

    def accept_older(self, index: int) -> None:
        """The ledger says that this step was reached before, by whatever incarnation: its record counts."""
        self._older.add(index)
        self._give_out_steps()

    def step_future(self, index: int) -> asyncio.Future[StepRecord]:
        """Resolved with the record of a step that can be given out, now or when it can."""
        future: asyncio.Future[StepRecord] = asyncio.get_running_loop().create_future()
        record = self._whole_step(index)
        if record is not None:
            future.set_result(record)
        elif self._untold is not None:
            future.set_exception(self._untold)
        else:
            _join(self._step_waiters, index, future)
        self._untold = None
        return future

    def singles(self) -> AbstractContextManager[Arrivals[Result]]:
        """The single results that are here, and those that arrive while the block runs."""
        return self._single_readers.join(result for result in self.jobs.values() if not result.record.group)

    def was_acked(self, unit: str) -> bool:
        """Whether this client acked a job or group."""
        return unit in self._acked

    def missing(self, step: StepRecord) -> list[str]:
        """Groups of a step whose record, or a member's, has not been read."""
        return [group for group in step.groups if not self._is_whole(group)]

    def _is_whole(self, group: str) -> bool:
        record = self.groups.get(group)
        return record is not None and all(job_id(group, member) in self.jobs for member in range(record.want))

    def _whole_step(self, index: int) -> StepRecord | None:
        record = self.steps.get(index)
        if (
            record is None
            or self._is_unsure
            or (record.incarnation != self.incarnation and index not in self._older)
            or self.missing(record)
        ):
            return None
        return record

    def _give_out_steps(self) -> None:
        for index in list(self._step_waiters):
            record = self._whole_step(index)
            if record is not None:
                for future in self._step_waiters.pop(index):
                    _resolve(future, record)

    # ---- what was lost

    def distrust(self) -> None:
        """Contact was lost: what is here may be lost there. Steps are given out again once that is known."""
        self._is_unread = self._is_unsure = True

    def trust(self, readings: int) -> None:
        """The ledger is where the trainer stands, by a comparison that began after so many readings."""
        if not self._is_unread and readings == self.readings:
            self._is_unsure = False
            self._give_out_steps()

    def forget_lost(self, there: Collection[str]) -> None:
        """The stream was read from its beginning to its end.

        Args:
            there: all entries that it has.
        """
        self._is_unread = False
        self.readings += 1
        for step in [step for step in self.steps.values() if step.entry not in there and step.index not in self.handed.steps]:
            del self.steps[step.index]
        kept = {group.group for group in self.groups.values() if group.step in self.handed.steps}
        for group in [group for group in self.groups.values() if group.entry not in there and group.group not in kept]:
            self._forget_group(group)
        for job, result in list(self.jobs.items()):
            if result.record.entry in there or result.record.group in kept:
                continue
            if result.record.group or (not result.was_given and self._runs_again(job)):
                del self.jobs[job]
                self._single_readers.take_back(result)
            elif not result.was_read and self._runs_again(job):
                result.is_lost = True
        if self.handed.steps:
            self._on_doubt()
        else:
            self.trust(self.readings)

    def take_back(self, steps: Iterable[int], groups: Iterable[str]) -> None:
        """The ledger was restored: these steps are as if they had not been reached, these groups go to later ones."""
        for index in steps:
            if index not in self.handed.steps:
                self.steps.pop(index, None)
        for group in groups:
            self._doubted.pop(group, None)
            known = self.groups.get(group)
            if known is not None and group not in self.handed:
                self._forget_group(known)

    def end_doubts(self) -> None:
        """All steps stand that the trainer was given: what contradicted them is nobody's."""
        for record in self._doubted.values():
            self._put_group_aside(record)
        self._doubted.clear()

    def _forget_group(self, group: GroupRecord) -> None:
        del self.groups[group.group]
        accounted = self._accounted.get(group.step, []) if group.step is not None else []
        if group in accounted:
            accounted.remove(group)

    # ---- what is acked

    def up_to(self, index: int) -> tuple[list[GroupRecord], list[StepRecord]]:
        """What an ack of step `index` lets go of: that step, all before it, and the groups that are accounted to them."""
        groups = [record for record in self.groups.values() if record.step is not None and record.step <= index]
        return groups, [record for record in self.steps.values() if record.index <= index]

    def drop_empty(self, index: int) -> None:
        """A step ended without groups: its record and the groups that were filtered for it are nobody's concern."""
        self._empty.add(index)
        self._accounted.pop(index, None)
        record = self.steps.pop(index, None)
        if record is not None:
            self._put_aside(record.entry, "step", str(index))
        for group in [group for group in self.groups.values() if group.step == index]:
            del self.groups[group.group]
            self._put_group_aside(group)

    def begin_ack(self, index: int) -> None:
        """From here on, what arrives for this step or an earlier one is late."""
        self._acked_step = max(self._acked_step, index)
        for known in [known for known in self._accounted if known <= index]:
            del self._accounted[known]

    def drop(self, kind: Kind, unit: str) -> None:
        """It was acked: its memory is free, and it does not come back."""
        if kind == "step":
            self.steps.pop(int(unit), None)
            self._older.discard(int(unit))
            return
        if kind == "group":
            record = self.groups.pop(unit, None)
            if record is not None:
                self._drop_members(record)
        else:
            self._drop_job(unit)
        self._acked[unit] = None
        while len(self._acked) > REMEMBERED:
            del self._acked[next(iter(self._acked))]

    def jobs_of_validation(self, serial: int) -> dict[str, list[str]]:
        """Jobs of a validation that have a result here, by group."""
        found: dict[str, list[str]] = {}
        for job, result in self.jobs.items():
            if validation_serial(result.record.group) == serial:
                found.setdefault(result.record.group, []).append(job)
        return found

    def _drop_members(self, group: GroupRecord) -> None:
        for member in range(group.want):
            self._drop_job(job_id(group.group, member))

    def _drop_job(self, job: str) -> None:
        result = self.jobs.pop(job, None)
        if result is not None:
            result.forget()


def _join(waiters: dict[K, set[asyncio.Future[V]]], key: K, future: asyncio.Future[V]) -> None:
    waiters.setdefault(key, set()).add(future)

    def leave(_: asyncio.Future[V]) -> None:
        left = waiters.get(key)
        if left is not None:
            left.discard(future)
            if not left:
                del waiters[key]

    future.add_done_callback(leave)


def _resolve(future: asyncio.Future[V], value: V) -> None:
    if not future.done():
        future.set_result(value)
