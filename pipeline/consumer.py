"""The one loop that every stage runs: claim, work, settle, drain.

Invariants:
  1. What was delivered to this process is begun on receipt, and what was begun ends in exactly one of: handed off, settled, given up, or
     fenced (another attempt has it). Only the script that says so frees the slot.
  2. Redis away is waited for: finished work is held in its slot and settles on return; no new work is claimed meanwhile, since no slot is free.
  3. One bad entry or job hurts itself only: batches that fail are tried one by one, and what still fails is a dead letter.
  4. Stopping has two steps. `stop` set: nothing more is claimed. After `grace_s`, or when `hurry` is set, what still runs is cancelled and handed
     back at once, uncounted.

A stage gives a `Work`: an async function of a `JobControl` that returns an `End`. What it raises is turned into an `End` by the stage itself
(`workers/stages`); here an unknown exception is a failed attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import redis
import structlog

from pipeline.cancel import CancelMessage, CancelTail
from pipeline.errors import BrokerError, BrokerMisused, BrokerUnreachable, JobCancelled, LeaseLost, RollstreamError
from pipeline.keys import Keys
from pipeline.leases import LeasedJob, LeaseKeeper
from pipeline.messages import Outcome, Settlement, Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.calls import MAX_BATCH, Begun, Claim, Given, GiveUpKind, HandOff, Held, JournalTurn, Scripts, Settle
from pipeline.settings import QueueSettings
from pipeline.streams import RawEntry, StreamReader

log = structlog.get_logger(__name__)

FIRST_PROGRESS_S = 120.0
"""A job that promised nothing yet must give a sign within this time."""
OUTAGE_PAUSE_S = 0.1
OUTAGE_PAUSE_MAX_S = 5.0
MAX_BATCH_BYTES = 8 * 1024 * 1024
CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class HandedOff:
    """The stage's work is done; the job goes on."""

    body: bytes
    node: str = ""
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """The job ends here."""

    settlement: Settlement
    body: bytes = b""
    kind: str = "eval"


@dataclass(frozen=True, slots=True)
class GivenUp:
    """This attempt could not do it."""

    kind: GiveUpKind
    why: str
    retry_stage: str = ""


End = HandedOff | Settled | GivenUp


class JobControl:
    """One attempt as its work sees it: who it is, and whether it may go on."""

    def __init__(self, begun: Begun, held: Held, consumer: Consumer) -> None:
        self.begun = begun
        self.held = held
        self.cancel_reason = ""
        self.lease_lost = False
        self.concluded = False
        self.started_s = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        self._consumer = consumer
        self._promised_s = self.started_s + FIRST_PROGRESS_S

    def makes_progress(self, now_s: float) -> bool:
        """Whether the last promise still stands."""
        return now_s < self._promised_s

    def progress(self, within_s: float) -> None:
        """Promises the next sign of life within `within_s` seconds; the lease is renewed until then."""
        self._promised_s = time.monotonic() + within_s

    def gate(self) -> None:
        """Passed before each model or tool call.

        Raises:
            JobCancelled: the job was cancelled.
            LeaseLost: another attempt has the job, or there was no contact with Redis for two leases.
        """
        if self.cancel_reason:
            raise JobCancelled(self.held.job, self.cancel_reason)
        if self.lease_lost or self._consumer.contact_age_s > 2 * self._consumer.settings.lease_s:
            raise LeaseLost(self.held.job, self.held.attempt)

    async def journal(self, index: int, body: bytes) -> None:
        """Keeps a finished turn.

        Raises:
            JobCancelled, LeaseLost: what the journal script answered.
        """
        word = await self._consumer.journal(JournalTurn(self.held.job, self.held.attempt, index, body))
        if word == "0":
            self.lease_lost = True
        elif word != "1":
            self.cancel_reason = self.cancel_reason or word
        self.gate()

    def verdict(self, word: str) -> None:
        """Takes what the server said of this attempt (`lost` or a cancel reason) and interrupts the work."""
        if word == "lost":
            self.lease_lost = True
        elif not self.cancel_reason:
            self.cancel_reason = word
        else:
            return
        if self.task is not None:
            self.task.cancel()


Work = Callable[[JobControl], Awaitable[End]]


class Slots:
    """Room for jobs in a process, shared by its consumers on several shards."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._freed = asyncio.Event()

    @property
    def free(self) -> int:
        return self.total - self.used

    def take(self) -> None:
        self.used += 1

    def give_back(self) -> None:
        self.used -= 1
        self._freed.set()

    async def wait_free(self, wake_s: float) -> None:
        """Returns when a slot is free, or after `wake_s` seconds."""
        if self.free > 0:
            return
        self._freed.clear()
        try:
            async with asyncio.timeout(wake_s):
                await self._freed.wait()
        except TimeoutError:
            return


@dataclass(slots=True)
class ConsumerStatistics:
    """What a consumer did since it started."""

    begun: int = 0
    handed_off: int = 0
    settled: int = 0
    given_up: int = 0
    fenced: int = 0
    again: int = 0
    cancelled: int = 0
    rejected: int = 0
    node_gone: int = 0


@dataclass(slots=True)
class _Ending:
    control: JobControl
    end: End
    active_ms: int


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
        self.settings = settings
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
        self._endings: list[_Ending] = []
        self._turns: list[tuple[JournalTurn, asyncio.Future[str]]] = []
        self._flush = asyncio.Event()
        self._released = asyncio.Event()
        self._stop = asyncio.Event()
        self._ttl_ms = int((settings.run_ttl_s + 86_400) * 1000)
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

    @property
    def contact_age_s(self) -> float:
        """Seconds since Redis last answered a lease renewal."""
        return self._keeper.contact_age_s

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
            tasks.create_task(self._flush_loop(flush_stop), name=f"settle-{self._consumer}")
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
            self._flush.set()

    @staticmethod
    async def _hurry(hurry: asyncio.Event, drain: asyncio.Timeout) -> None:
        await hurry.wait()
        if not drain.expired():
            with contextlib.suppress(RuntimeError):  # the drain is over already
                drain.reschedule(asyncio.get_running_loop().time())

    async def journal(self, turn: JournalTurn) -> str:
        """Queues a turn for the next batch; returns the script's word for it."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._turns.append((turn, future))
        self._flush.set()
        return await future

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
                    backoff_ms=int(self.settings.retry_backoff_s * 1000),
                    backoff_max_ms=int(self.settings.retry_backoff_max_s * 1000),
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
                    lock_ms=int(self.settings.lease_s * 1000),
                    window=self.settings.admit_window,
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
        control = JobControl(begun, held, self)
        self.statistics.begun += 1
        self._slots.take()
        self._held[held.entry] = control
        control.task = jobs.create_task(self._serve(control), name=f"{self._stage.value}-{held.job}:{held.attempt}")
        # a task that is cancelled before its first step never runs a line of `_serve`
        control.task.add_done_callback(lambda _: self._conclude(control, self._interrupted(control)))

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
            self._endings.append(_Ending(control, end, int((time.monotonic() - control.started_s) * 1000)))
            self._flush.set()
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
            return self._interrupted(control)
        except (JobCancelled, LeaseLost):
            return self._interrupted(control)
        except RollstreamError as error:
            return GivenUp("failed", f"{type(error).__name__}: {error}")
        except Exception as error:
            log.exception("work_raised", job_id=control.held.job, stage=self._stage.value)
            return GivenUp("failed", f"{type(error).__name__}: {error}")

    @staticmethod
    def _interrupted(control: JobControl) -> End | None:
        if control.cancel_reason:
            outcome = Outcome.EXPIRED if control.cancel_reason == "deadline" else Outcome.CANCELLED
            return Settled(Settlement(outcome=outcome, reason=control.cancel_reason))
        if control.lease_lost:
            return None
        return GivenUp("back", "handed back: the worker stops, or had no contact with Redis")

    def _release(self, control: JobControl) -> None:
        if self._held.pop(control.held.entry, None) is not None:
            self._slots.give_back()
            self._released.set()

    # ---- settling

    async def _flush_loop(self, stop: asyncio.Event) -> None:
        """Sends what is waiting, in batches; while one is on its way the next gathers."""
        while not (stop.is_set() and not self._endings and not self._turns):
            await self._flush.wait()
            self._flush.clear()
            while self._turns:
                turns, self._turns = self._turns[:MAX_BATCH], self._turns[MAX_BATCH:]
                await self._send_turns(turns)
            while self._endings:
                batch = self._take_batch()
                await self._send_endings(batch)

    def _take_batch(self) -> list[_Ending]:
        """The oldest endings of one kind, up to a batch and its bytes."""
        kind, size = type(self._endings[0].end), 0
        batch: list[_Ending] = []
        rest: list[_Ending] = []
        for ending in self._endings:
            end = ending.end
            body = 0 if isinstance(end, GivenUp) else len(end.body)
            if type(end) is kind and len(batch) < MAX_BATCH and (not batch or size + body <= MAX_BATCH_BYTES):
                batch.append(ending)
                size += body
            else:
                rest.append(ending)
        self._endings = rest
        return batch

    async def _send_turns(self, turns: Sequence[tuple[JournalTurn, asyncio.Future[str]]]) -> None:
        words = await self._until_reached(lambda: self._scripts.journal([turn for turn, _ in turns], ttl_ms=self._ttl_ms))
        for at, (turn, future) in enumerate(turns):
            word = words[at] if isinstance(words, list) else "0"
            if not isinstance(words, list) and len(turns) > 1:
                await self._send_turns([(turn, future)])
            elif not future.done():
                future.set_result(word)

    async def _send_endings(self, batch: list[_Ending]) -> None:
        batch = [self._bounded(ending) for ending in batch]
        words = await self._until_reached(lambda: self._call(batch))
        if isinstance(words, list):
            for ending, word in zip(batch, words, strict=True):
                self._ended(ending, word)
        elif len(batch) > 1:
            for ending in batch:
                await self._send_endings([ending])
        else:
            held = batch[0].control.held
            await self._until_reached(lambda: self._reject_held(held, str(words)))
            self._release(batch[0].control)

    async def _reject_held(self, held: Held, why: str) -> list[str]:
        await self._reject(RawEntry(held.stream, held.entry, held.job.encode()), f"job {held.job}: {why}")
        return []

    def _bounded(self, ending: _Ending) -> _Ending:
        end = ending.end
        if isinstance(end, GivenUp) or len(end.body) <= self.settings.max_body_bytes:
            return ending
        why = f"result_too_large: {len(end.body):,} bytes, the bound is {self.settings.max_body_bytes:,}"
        return _Ending(ending.control, GivenUp("dead", why), ending.active_ms)

    async def _until_reached(self, call: Callable[[], Awaitable[list[str]]]) -> list[str] | Exception:
        """Calls until Redis answers; an answer that no retry can change is returned as the exception it is."""
        pause_s = OUTAGE_PAUSE_S
        while True:
            try:
                return await call()
            except BrokerUnreachable as error:
                log.warning("settle_waits_for_redis", consumer=self._consumer, held=len(self._held), error=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(OUTAGE_PAUSE_MAX_S, pause_s * 2)
            except (BrokerError, redis.ResponseError) as error:
                log.error("settle_refused", consumer=self._consumer, error=str(error))
                return error

    async def _call(self, batch: Sequence[_Ending]) -> list[str]:
        first = batch[0].end
        if isinstance(first, HandedOff):
            offs = [
                HandOff(e.control.held, e.end.node, e.end.epoch, e.active_ms, e.end.body) for e in batch if isinstance(e.end, HandedOff)
            ]
            return await self._scripts.hand_off(self._stage, offs, ttl_ms=self._ttl_ms)
        if isinstance(first, Settled):
            ends = [
                Settle(e.control.held, e.active_ms, e.end.body, e.end.kind, e.end.settlement) for e in batch if isinstance(e.end, Settled)
            ]
            return await self._scripts.settle(self._stage, ends, ttl_ms=self._ttl_ms)
        given = [
            Given(e.control.held, e.end.kind, e.end.why, self._random.random(), e.end.retry_stage)
            for e in batch
            if isinstance(e.end, GivenUp)
        ]
        return await self._scripts.give_up(
            self._stage,
            given,
            backoff_ms=int(self.settings.retry_backoff_s * 1000),
            backoff_max_ms=int(self.settings.retry_backoff_max_s * 1000),
        )

    def _ended(self, ending: _Ending, word: str) -> None:
        control, end = ending.control, ending.end
        if word.startswith("cx:") and isinstance(end, HandedOff):
            # cancelled between the work and the hand-off: it ends as cancelled instead
            outcome = Outcome.EXPIRED if word == "cx:deadline" else Outcome.CANCELLED
            settled = Settled(Settlement(outcome=outcome, reason=word[3:]))
            self._endings.append(_Ending(control, settled, ending.active_ms))
            self._flush.set()
            return
        if word == "fenced":
            self.statistics.fenced += 1
        elif word == "again":
            self.statistics.again += 1
        elif word == "node_gone":
            self.statistics.node_gone += 1
            log.warning("node_gone", job_id=control.held.job, what="no RUN worker of this node reads its lane, or it serves other environments")
        elif isinstance(end, HandedOff):
            self.statistics.handed_off += 1
        elif isinstance(end, Settled):
            self.statistics.settled += 1
        else:
            self.statistics.given_up += 1
        self._release(control)

    async def _drained(self) -> None:
        """Waits until what was finished is settled."""
        while self._held:
            self._released.clear()
            self._flush.set()
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
