"""The one loop that every stage runs: claim, work, settle, drain.

Invariants:
  1. What was delivered to this process is begun on receipt, and what was begun ends in exactly one of: handed off, settled, given up, or
     fenced (another attempt has it). Only the script that says so frees the slot (`pipeline/settling.py`).
  2. Redis away is waited for: finished work is held in its slot and settles on return; nothing new is claimed, since no slot is free.
  3. One bad entry or job hurts itself only: batches that fail are tried one by one, and what still fails is a dead letter.
  4. Stopping has two steps. `stop` set: nothing more is claimed. After `grace_s`, or when `hurry` is set, what still runs is cancelled
     and handed back at once, uncounted.

What a stage raises it turns into an `End` itself (`workers/stages`); here an unknown exception is a failed attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence

import redis
import structlog

from pipeline.attempts import End, GivenUp, JobControl, Slots, Work
from pipeline.cancel import CancelMessage, CancelTail
from pipeline.errors import BrokerMisused, BrokerUnreachable, JobCancelled, LeaseLost, RollstreamError
from pipeline.keys import Keys
from pipeline.leases import LeasedJob, LeaseKeeper
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.calls import MAX_BATCH, Begun, Claim, Held, Scripts
from pipeline.settings import QueueSettings
from pipeline.settling import OUTAGE_PAUSE_MAX_S, OUTAGE_PAUSE_S, ConsumerStatistics, Settler
from pipeline.streams import RawEntry, StreamReader

log = structlog.get_logger(__name__)


class Consumer:
    """Serves one stage on one shard with the slots of this process.

    Args:
        consumer: stable name, held by `boot`, this process.
        slots: room for jobs, shared with the consumers of other shards.
        reader: over the streams of the stage.
        tail_client: a reader client for the cancel stream.
        work: what a job needs done.
        node, epoch: where this process runs, and since when that node's environments exist.
    """

    def __init__(
        self,
        *,
        settings: QueueSettings,
        keys: Keys,
        scripts: Scripts,
        stage: Stage,
        consumer: str,
        boot: str,
        slots: Slots,
        reader: StreamReader,
        tail_client: AsyncClient,
        work: Work,
        node: str,
        epoch: str,
    ) -> None:
        self._settings = settings
        self.statistics = ConsumerStatistics()
        self._keys = keys
        self._scripts = scripts
        self._stage = stage
        self._consumer = consumer
        self._boot = boot
        self._slots = slots
        self._reader = reader
        self._work = work
        self._random = random.Random()
        self._held: dict[str, JobControl] = {}
        self._settler = Settler(settings, scripts, stage, consumer, self.statistics, release=self._release, reject=self._reject)
        self._released = asyncio.Event()
        self._stop = asyncio.Event()
        self._tail = CancelTail(tail_client, keys, self._on_cancel, self._on_gap)
        self._keeper = LeaseKeeper(
            settings,
            keys,
            stage,
            consumer,
            boot,
            snapshot=lambda: list(self._held.values()),
            on_verdict=_deliver_verdict,
            on_usurped=self._on_usurped,
            beat=(node, epoch, stage is Stage.RUN),
        )
        self.usurped = False

    def _is_cut_off(self) -> bool:
        """Whether Redis has not answered for two leases: then nothing new starts."""
        return self._keeper.contact_age_s > 2 * self._settings.lease_s

    async def run(self, stop: asyncio.Event, *, hurry: asyncio.Event, grace_s: float) -> None:
        """Serves until `stop` is set, then drains within `grace_s`, or until `hurry` is set.

        The name must be held (`scripts.take_name`).

        Raises:
            BrokerMisused: a stage stream is of another type.
        """
        self._stop = stop
        await self._enter()
        flush_stop = asyncio.Event()
        tail_stop = asyncio.Event()
        async with self._keeper, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tail.run(tail_stop), name=f"cancels-{self._consumer}")
            tasks.create_task(self._settler.run(flush_stop), name=f"settle-{self._consumer}")
            try:
                async with asyncio.timeout(None) as drain, asyncio.TaskGroup() as jobs:
                    await self._claim_loop(stop, jobs)
                    log.info("draining", consumer=self._consumer, running=len(self._held), grace_s=grace_s)
                    now_s = asyncio.get_running_loop().time()
                    drain.reschedule(now_s + (0 if hurry.is_set() else grace_s))
                    tasks.create_task(self._hurry(hurry, drain), name=f"hurry-{self._consumer}")
            except TimeoutError:
                log.info("handing_back", consumer=self._consumer, running=len(self._held))
            await self._drained()
            hurry.set()
            flush_stop.set()
            tail_stop.set()
            self._settler.wake()

    @staticmethod
    async def _hurry(hurry: asyncio.Event, drain: asyncio.Timeout) -> None:
        await hurry.wait()
        if not drain.expired():
            with contextlib.suppress(RuntimeError):  # the drain is over already
                drain.reschedule(asyncio.get_running_loop().time())

    # ---- claiming

    async def _enter(self) -> None:
        """What comes before the first claim; waits for Redis."""
        pause_s = OUTAGE_PAUSE_S
        while True:
            try:
                await self._reader.open()
                await self._tail.open()
                return await self._recover_own()
            except BrokerUnreachable as error:
                log.warning("redis_unreachable", consumer=self._consumer, error=str(error), pause_s=round(pause_s, 2))
                await asyncio.sleep(pause_s)
                pause_s = min(OUTAGE_PAUSE_MAX_S, pause_s * 2)

    async def _recover_own(self) -> None:
        """Puts back what an earlier boot of this name left, without waiting for its leases."""
        client = self._scripts.run_script.client
        for stream in self._reader.streams:
            while True:
                page = await ask(client, "XPENDING", stream, self._stage.value, "-", "+", MAX_BATCH, self._consumer, parse_detail=True)
                entries: list[tuple[str, str, str, float]] = []
                for row in page:
                    found = await ask(client, "XRANGE", stream, row["message_id"], row["message_id"])
                    job = found[0][1].get(b"job", b"") if found else b""
                    entries.append((self._keys.short(stream), row["message_id"].decode(), job.decode(), self._random.random()))
                if not entries:
                    break
                words = await self._scripts.recover(
                    "restart",
                    entries,
                    lease_ms=0,
                    consumer=self._consumer,
                    boot=self._boot,
                    backoff_ms=int(self._settings.retry_backoff_s * 1000),
                    backoff_max_ms=int(self._settings.retry_backoff_max_s * 1000),
                )
                log.info("recovered_own", consumer=self._consumer, verdicts=words)
                if "usurped" in words:
                    self._on_usurped()
                    return

    async def _claim_loop(self, stop: asyncio.Event, jobs: asyncio.TaskGroup) -> None:
        pause_s = OUTAGE_PAUSE_S
        block = False
        while not stop.is_set():
            await self._slots.wait_free(1.0)
            free = self._slots.free
            if free <= 0:
                continue
            count = 1 if block else min(MAX_BATCH, max(1, free // 4))
            try:
                claims, raw = await self._reader.read(count, block=block, held=self._entries_held())
                for entry in raw:
                    await self._reject(entry, "no header of ours")
                if claims:
                    await self._begin(claims, jobs)
                pause_s = OUTAGE_PAUSE_S
            except BrokerUnreachable as error:
                log.warning("redis_unreachable", consumer=self._consumer, error=str(error), pause_s=round(pause_s, 2))
                await asyncio.sleep(pause_s)
                pause_s = min(OUTAGE_PAUSE_MAX_S, pause_s * 2)
                continue
            block = not claims

    def _entries_held(self) -> set[str]:
        return {control.held.entry for control in self._held.values()}

    async def _begin(self, claims: Sequence[Claim], jobs: asyncio.TaskGroup) -> None:
        """Begins entries; retried until Redis answers, since they are delivered to us and to nobody else."""
        for begun in await self._begin_batch(claims):
            if begun.state == "ok":
                self._start(begun, jobs)
            elif begun.state == "usurped":
                self._on_usurped()
            elif begun.state == "ended":
                self.statistics.cancelled += 1

    async def _begin_batch(self, claims: Sequence[Claim]) -> list[Begun]:
        pause_s = OUTAGE_PAUSE_S
        while True:
            try:
                return await self._scripts.begin(
                    self._stage,
                    self._consumer,
                    self._boot,
                    claims,
                    lock_ms=int(self._settings.lease_s * 1000),
                    window=self._settings.admit_window,
                )
            except BrokerUnreachable:
                await asyncio.sleep(pause_s)
                pause_s = min(OUTAGE_PAUSE_MAX_S, pause_s * 2)
            except (BrokerMisused, redis.ResponseError) as error:
                if len(claims) > 1:
                    return [begun for claim in claims for begun in await self._begin_batch([claim])]
                claim = claims[0]
                await self._reject(RawEntry(claim.stream, claim.entry, claim.job.encode()), f"job {claim.job}: {error}")
                return []

    async def _reject(self, entry: RawEntry, why: str) -> None:
        log.warning("entry_rejected", stream=entry.stream, entry=entry.entry, why=why)
        self.statistics.rejected += 1
        await self._scripts.reject(entry.stream, self._stage, entry.entry, why, entry.fields)

    def _start(self, begun: Begun, jobs: asyncio.TaskGroup) -> None:
        held = Held(begun.claim.stream, begun.claim.entry, begun.claim.job, begun.attempt)
        control = JobControl(begun, held, keep_turn=self._settler.journal, is_cut_off=self._is_cut_off)
        self.statistics.begun += 1
        self._slots.take()
        self._held[held.entry] = control
        control.task = jobs.create_task(self._serve(control), name=f"{self._stage.value}-{held.job}:{held.attempt}")
        # a task that is cancelled before its first step never runs a line of `_serve`
        control.task.add_done_callback(lambda _: self._conclude(control, control.interrupted()))

    # ---- working

    async def _serve(self, control: JobControl) -> None:
        """Works on one job and ends it. Never raises: what a job does wrong stays in the job."""
        self._conclude(control, await self._end_of(control))

    def _conclude(self, control: JobControl, end: End | None) -> None:
        """Takes the end of an attempt, the first that comes; None, or a lost lease, means that its output is dropped."""
        if control.concluded:
            return
        control.concluded = True
        if end is not None and not control.lease_lost:
            self._settler.put(control, end, int((time.monotonic() - control.started_s) * 1000))
        else:
            self.statistics.fenced += 1
            self._release(control)

    async def _end_of(self, control: JobControl) -> End | None:
        try:
            return await self._work(control)
        except asyncio.CancelledError:
            # interrupted by a verdict on this job, or by the end of the grace period: both end here, with the job's end as the answer
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            return control.interrupted()
        except (JobCancelled, LeaseLost):
            return control.interrupted()
        except RollstreamError as error:
            return GivenUp("failed", f"{type(error).__name__}: {error}")
        except Exception as error:
            log.exception("work_raised", job_id=control.held.job, stage=self._stage.value)
            return GivenUp("failed", f"{type(error).__name__}: {error}")

    def _release(self, control: JobControl) -> None:
        if self._held.pop(control.held.entry, None) is not None:
            self._slots.give_back()
            self._released.set()

    # ---- leaving

    async def _drained(self) -> None:
        """Waits until what was finished is settled."""
        while self._held:
            self._released.clear()
            self._settler.wake()
            await self._released.wait()

    # ---- what others tell us

    def _on_cancel(self, message: CancelMessage) -> None:
        ids = set(message.ids)
        for control in list(self._held.values()):
            claim = control.begun.claim
            target = {"job": claim.job, "group": claim.group, "run": claim.run}.get(message.kind, "")
            if target in ids:
                control.verdict(message.reason)

    def _on_gap(self) -> None:
        self._keeper.wake()

    def _on_usurped(self) -> None:
        if not self.usurped:
            log.error("name_taken", consumer=self._consumer, what="another process took this worker's name; this one stops")
            self.usurped = True
            for control in list(self._held.values()):
                control.verdict("lost")
            self._stop.set()


def _deliver_verdict(job: LeasedJob, word: str) -> None:
    if isinstance(job, JobControl):
        job.verdict(word)
