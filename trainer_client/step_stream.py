"""Opens steps ahead of their use, and gives them out in order, each when all of it is here."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

from pipeline.causes import Cause, Reason
from pipeline.codec import encode
from pipeline.errors import InvalidRequest, QueueFull
from pipeline.keys import Keys, job_id
from pipeline.messages import JobResult
from pipeline.requests import bounded_int, template_id
from pipeline.scripts.step_calls import StepScripts
from pipeline.step_request import StepRequest
from pipeline.supervisor.step_spec import StepSpec
from trainer_client.bodies import BodyStore
from trainer_client.broken_groups import BrokenGroups
from trainer_client.calls import Calls
from trainer_client.errors import FULL, WaitTimeout
from trainer_client.inbox import Inbox
from trainer_client.lifetime import Lifetime
from trainer_client.policy_version import PolicyVersion
from trainer_client.progress import Progress
from trainer_client.records import GroupRecord, StepRecord
from trainer_client.steps import Group, Step


class StepStream:
    """Opens steps and gives them out in order."""

    def __init__(
        self,
        *,
        run: str,
        incarnation: int,
        progress: Progress,
        scripts: StepScripts,
        inbox: Inbox,
        bodies: BodyStore,
        keys: Keys,
        version: PolicyVersion,
        calls: Calls,
        life: Lifetime,
        on_open: Callable[[], None],
        ack: Callable[[int], Awaitable[None]],
        hold_s: Callable[[], float],
        why_waiting: Callable[[int], Awaitable[Sequence[Reason]]],
        broken: BrokenGroups,
    ) -> None:
        self._run = run
        self._incarnation = incarnation
        self._progress = progress
        self._scripts = scripts
        self._inbox = inbox
        self._bodies = bodies
        self._keys = keys
        self._version = version
        self._calls = calls
        self._life = life
        self._on_open = on_open
        self._ack = ack
        self._hold_s = hold_s
        self._why_waiting = why_waiting
        self._broken = broken
        self._open: dict[int, StepRequest] = {}
        self._empty: set[int] = set()
        self._given_out = -1

    async def stream(
        self, request: StepRequest, start: int | None, count: int | None, timeout_s: float | None, *, progress: bool
    ) -> AsyncIterator[Step]:
        """See `Run.steps`."""
        index = self._first(start)
        last = math.inf if count is None else index + count - 1
        while index <= last and index not in self._empty:
            asked_s = time.monotonic()
            for ahead in range(index, int(min(index + request.ahead, last)) + 1):
                await self._open_step(ahead, request, timeout_s)
            left_s = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - asked_s))
            record = await (self._watched(index, request, left_s) if progress else self._wait_for(index, left_s))
            if not record.groups:
                await self._end_empty(index, timeout_s)
                if (error := self._broken.at_the_end()) is not None:
                    raise error
                return
            self._given_out = index
            step = self._step(record, time.monotonic() - asked_s)
            self._inbox.handed.add(record, self._inbox.accounted_to(index))
            yield step
            index += 1

    async def reopen(self) -> None:
        """Asks again for the steps that were not given out, in case Redis lost that they were asked for."""
        for index, request in sorted(self._open.items()):
            if index > self._given_out:
                await self._ask_for(index, request, None)

    def close_up_to(self, index: int) -> None:
        """Steps that were acked need not be asked for again."""
        for known in [known for known in self._open if known <= index]:
            del self._open[known]

    def _first(self, start: int | None) -> int:
        if start is None:
            return 1 if self._progress.next_step is None else self._progress.next_step
        bounded_int(start, "start", low=0, high=2**53)
        if self._progress.next_step is not None and start < self._progress.next_step:
            raise InvalidRequest(
                f"run {self._run!r} has acked its steps up to {self._progress.next_step - 1}, got {start}: go on with "
                f"start={self._progress.next_step} or without start, go back with resume=<state of an older checkpoint>, "
                "or begin a run with another id",
                field="start",
            )
        return start

    async def _open_step(self, index: int, request: StepRequest, timeout_s: float | None) -> None:
        if index in self._open:
            return
        word = await self._ask_for(index, request, timeout_s)
        if word == "reached":
            self._inbox.accept_older(index)
        self._open[index] = request
        self._on_open()

    @property
    def has_open(self) -> bool:
        """Whether a step is open that was not acked."""
        return bool(self._open)

    @property
    def sampling_deterministic(self) -> int | None:
        """A deterministic step that is being sampled: the weights may not change now."""
        return next((index for index, request in self._open.items() if request.deterministic and index > self._given_out), None)

    async def _ask_for(self, index: int, request: StepRequest, timeout_s: float | None) -> str:
        """Waits while Redis takes no new work; not longer than the step may be waited for."""
        started_s = time.monotonic()
        template = replace(request.template(), hold_s=self._hold_s())
        body = encode(template)
        while True:
            try:
                return await self._calls.make_if_open(
                    self._scripts.open_step,
                    self._run,
                    self._incarnation,
                    index,
                    request.spec(),
                    template,
                    template_id(body),
                    body,
                    base=self._progress.base,
                )
            except QueueFull as error:
                waited_s = time.monotonic() - started_s
                if timeout_s is not None and waited_s + error.retry_after_s > timeout_s:
                    raise WaitTimeout(f"step {index}", waited_s, [Reason(Cause.QUEUE_FULL, error.why, FULL)]) from error
                await self._life.pause(error.retry_after_s)

    async def _wait_for(self, index: int, timeout_s: float | None) -> StepRecord:
        future = self._inbox.step_future(index)
        return await self._life.wait(future, f"step {index}", timeout_s, lambda: self._why_waiting(index), needs_open_run=True)

    async def _watched(self, index: int, request: StepRequest, timeout_s: float | None) -> StepRecord:
        from trainer_client.progress_line import ProgressLine

        async with ProgressLine(self._inbox).shown(index, request.groups, lambda: self._why_waiting(index)):
            return await self._wait_for(index, timeout_s)

    def _step(self, record: StepRecord, waited_s: float) -> Step:
        spec = self._open[record.index].spec()
        groups = [self._group(group, spec) for group in record.groups]
        accounted = self._inbox.accounted_to(record.index)
        kept = [self._group(group.group, spec) for group in accounted if group.keeps_bodies]
        everyone = {group.group: self._members_of(group) for group in accounted}
        return Step(record, groups, kept, accounted, everyone, self._bodies, self._ack, waited_s=waited_s)

    def _members_of(self, group: GroupRecord) -> list[JobResult]:
        """Records of its members that are here; those of a group that nobody trains may be gone."""
        found = (self._inbox.jobs.get(job_id(group.group, member)) for member in range(group.want))
        return [result.record for result in found if result is not None]

    def _group(self, group: str, spec: StepSpec) -> Group:
        record = self._inbox.groups[group]
        results = [self._inbox.jobs[job_id(group, member)] for member in range(record.want)]
        return Group(record, results, self._bodies, self._keys, spec, self._version.current)

    async def _end_empty(self, index: int, timeout_s: float | None) -> None:
        """The prompts have ended: this step and those opened after it have no groups."""
        for empty in sorted(known for known in self._open if known >= index):
            await self._wait_for(empty, timeout_s)
            self._inbox.drop_empty(empty)
            self._empty.add(empty)
            del self._open[empty]
