"""The client's background duties: sign of life, results that live until they are acked, leftovers that go, writes that are repeated.

Invariants:
  1. Redis hears from the trainer at least every ten seconds; so does the trainer of its being fenced off.
  2. What is not acked outlives any pause of the trainer: its keys get a new time to live each quarter of it.
  3. After an outage everything that may have been lost with the server's last writes is sent again; all of it is idempotent.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Literal

from pipeline.errors import BrokerUnreachable, QueueFull, RunClosed
from pipeline.scripts.calls import MAX_BATCH, Scripts
from pipeline.scripts.trainer_calls import TrainerScripts
from trainer_client.calls import Calls
from trainer_client.contact import Contact
from trainer_client.inbox import Inbox
from trainer_client.lifetime import Lifetime
from trainer_client.logs import Log

log = Log(__name__)

MAX_BEAT_S = 10.0


class Keeper:
    """Does these duties for one client.

    Args:
        ttl_s: time to live of the run.
        resubmit: sends again what may have been lost; returns how much was.
        on_moved: told when the results stream says that the ledger moved.
    """

    def __init__(
        self,
        *,
        run: str,
        incarnation: int,
        ttl_s: float,
        scripts: Scripts,
        trainer_scripts: TrainerScripts,
        inbox: Inbox,
        contact: Contact,
        calls: Calls,
        life: Lifetime,
        resubmit: Callable[[], Awaitable[int]],
        on_moved: Callable[[], None],
    ) -> None:
        self._run = run
        self._incarnation = incarnation
        self._beat_s = min(MAX_BEAT_S, ttl_s / 10)
        self._extend_s = ttl_s / 4
        self._scripts = scripts
        self._trainer_scripts = trainer_scripts
        self._inbox = inbox
        self._contact = contact
        self._calls = calls
        self._life = life
        self._resubmit = resubmit
        self._on_moved = on_moved

    async def beat(self) -> None:
        """Says that the trainer is there, until the client ends or the run takes no more work."""
        while not self._life.stop.is_set():
            try:
                await self._calls.make(self._scripts.touch_run, self._run, self._incarnation)
            except RunClosed as error:
                log.warning("run_takes_no_more_work", run=self._run, state=error.state)
                return
            except BrokerUnreachable:
                continue
            await self._life.pause(self._beat_s)

    async def extend(self) -> None:
        """Keeps what is not acked alive."""
        while not self._life.stop.is_set():
            await self._life.pause(self._extend_s)
            try:
                await self._extend_all()
            except RunClosed:
                return
            except BrokerUnreachable:
                continue

    async def _extend_all(self) -> None:
        units: list[tuple[Literal["job", "group"], str]] = [("group", group) for group in self._inbox.groups]
        units += [("job", job) for job, result in self._inbox.jobs.items() if result.record.group not in self._inbox.groups]
        units += [("group", group) for serial in self._inbox.open_validations for group in self._inbox.jobs_of_validation(serial)]
        gone = 0
        for at in range(0, max(1, len(units)), MAX_BATCH):
            part = units[at : at + MAX_BATCH]
            gone += await self._calls.make(self._trainer_scripts.extend, self._run, self._incarnation, part)
        if gone:
            log.warning("results_are_gone", run=self._run, units=gone)

    async def tidy(self) -> None:
        """Drops what nobody will ask for, and passes on that the ledger moved."""
        while not self._life.stop.is_set():
            await self._life.pause(None, self._inbox.moved)
            self._inbox.moved.clear()
            self._on_moved()
            try:
                await self._drop_leftovers()
            except RunClosed:
                return
            except BrokerUnreachable:
                self._inbox.moved.set()

    async def _drop_leftovers(self) -> None:
        while self._inbox.set_aside:
            part = [(entry, kind, unit) for entry, (kind, unit) in islice(self._inbox.set_aside.items(), MAX_BATCH)]
            await self._calls.make(self._scripts.ack, self._run, self._incarnation, part)
            for entry, _, _ in part:
                del self._inbox.set_aside[entry]

    async def repeat(self) -> None:
        """Sends again, after an outage, what Redis may have lost in it."""
        while not self._life.stop.is_set():
            await self._life.pause(None, self._contact.returned)
            if self._life.stop.is_set():
                return
            self._contact.returned.clear()
            started_s = time.monotonic()
            try:
                lost = await self._resubmit()
            except BrokerUnreachable:
                self._contact.returned.set()
                continue
            except QueueFull as error:
                self._contact.returned.set()
                await self._life.pause(error.retry_after_s)
                continue
            except RunClosed:
                continue  # what it has is given out all the same, after the next outage too
            log.info("resubmitted", run=self._run, lost=lost, took_s=round(time.monotonic() - started_s, 3))
