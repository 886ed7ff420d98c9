"""The one loop that every stage runs: claim, work, settle, drain.

Invariants:
  1. What was delivered to this process is begun on receipt, or goes back at once, uncounted, when there is no slot for it. What was begun
     ends in exactly one of: handed off, settled, given up, or fenced (another attempt has it). Only the script that says so frees the slot
     (`pipeline/settling.py`).
  2. Redis away is waited for: finished work is held in its slot and settles on return; nothing new is claimed, since no slot is free.
  3. One bad entry or job hurts itself only: batches that fail are tried one by one, and what still fails is a dead letter.
  4. Stopping has two steps. `stop` set: nothing more is claimed. After `grace_s`, or when `hurry` is set, what still runs is cancelled
     and handed back at once, uncounted. A Redis that stays away does not keep us: what could not be said is left to its leases.
  5. Work that does not let itself be interrupted keeps neither its job nor its slot nor the drain (`pipeline/interruption.py`).
  6. A worker that finds that it cannot serve what it claims (a message of a higher version, a node without RUN) claims nothing for a
     while, so that others get it.

What a stage raises it turns into an `End` itself (`workers/stages`); here an unknown exception is a failed attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Callable, Sequence

import redis
import structlog

from pipeline.attempts import End, GivenUp, JobControl, Slots, Work, fault_of
from pipeline.cancel import CancelMessage, CancelTail
from pipeline.errors import BrokerError, BrokerMisused, BrokerUnreachable, JobCancelled, LeaseLost, RollstreamError
from pipeline.interruption import AttemptTasks
from pipeline.keys import Keys
from pipeline.leases import LeasedJob, LeaseKeeper
from pipeline.messages import Stage
from pipeline.recovery import put_back
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.calls import MAX_BATCH, Begun, Claim, Held, LaneReader, NameHolder, Scripts
from pipeline.settings import QueueSettings
from pipeline.settling import OUTAGE_PAUSE_MAX_S, OUTAGE_PAUSE_S, ConsumerStatistics, Settler
from pipeline.streams import RawEntry, StreamReader

log = structlog.get_logger(__name__)

LAST_WORD_S = 5.0
"""Who leaves and does not reach Redis tries for this long, as long as one command may take, to say how its jobs ended."""
FIRST_REST_S, LONGEST_REST_S = 1.0, 60.0
"""Pause of a worker that cannot serve what it claims; doubled each time until it serves something."""


class Consumer:
    """Serves one stage on one shard with the slots of this process.

    Args:
        consumer: stable name, held by `boot`, this process.
        slots: room for jobs, shared with the consumers of other shards.
        reader: over the streams of the stage.
        tail_client: a reader client for the cancel stream.
        work: what a job needs done.
        holder: this process.
        epoch: since when the environments of its node exist.
        lane: of its node, as this process reads it; None = it reads none.
        on_cancel: told of each cancel, also of jobs that are not held here.
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
        holder: NameHolder,
        epoch: str,
        lane: LaneReader | None = None,
        on_cancel: Callable[[CancelMessage], None] | None = None,
    ) -> None:
        self._settings = settings
        self.statistics = ConsumerStatistics()
        self._keys = keys
        self._scripts = scripts
        self._stage = stage
        self._consumer = consumer
        self._boot = boot
        self._node = holder.node
        self._slots = slots
        self._reader = reader
        self._work = work
        self._tell_cancel = on_cancel
        self._random = random.Random()
        self._held: dict[tuple[str, str], JobControl] = {}
        self._settler = Settler(
            settings, scripts, stage, consumer, self.statistics, release=self._release, reject=self._reject, unfit=self._rest
        )
        self._tasks = AttemptTasks(overdue=self._conclude_interrupted, gone=self._on_work_gone)
        self._released = asyncio.Event()
        self._stop = asyncio.Event()
        self._rest_s = 0.0
        self._rests_until_s = 0.0
        self._served_at_rest = 0
        self._tail = CancelTail(tail_client, keys, self._on_cancel, self._on_gap)
        self._keeper = LeaseKeeper(
            settings,
            keys,
            stage,
            consumer,
            boot,
            holder,
            snapshot=lambda: list(self._held.copy().values()),  # a copy is made in one step: the thread asks while jobs come and go
            on_verdict=_deliver_verdict,
            on_usurped=self._on_usurped,
            beat=(epoch, stage is Stage.RUN),
            lane=lane,
            claims=lambda: not self._stop.is_set() and not self._rests,
            idle_why=lambda: slots.idle_why,
        )
        self.usurped = False

    def _is_cut_off(self) -> bool:
        """Whether Redis has not answered for two leases: then nothing new starts."""
        return self._keeper.contact_age_s > 2 * self._settings.lease_s

    async def run(self, stop: asyncio.Event, *, hurry: asyncio.Event, grace_s: float) -> None:
        """Serves until `stop` is set, then drains within `grace_s`, or until `hurry` is set.

        The name must be held (`scripts.take_name`).

        Raises:
            BrokerMisused: a stage stream is of another type, before the first claim; later that is waited for.
        """
        self._stop = stop
        if not await self._enter():
            return
        flush_stop = asyncio.Event()
        tail_stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with self._keeper, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tail.run(tail_stop), name=f"cancels-{self._consumer}")
            settling = tasks.create_task(self._settler.run(flush_stop), name=f"settle-{self._consumer}")
            hurried: list[asyncio.Task[None]] = []
            async with self._tasks:
                await self._claim_loop(stop)
                self._keeper.wake()  # it says that nothing more is to be placed here
                log.info("draining", consumer=self._consumer, running=len(self._held), grace_s=grace_s)
                grace_ends_s = loop.time() + grace_s
                try:
                    async with asyncio.timeout_at(grace_ends_s) as drain:
                        hurried.append(tasks.create_task(self._shorten(drain, hurry, to_s=0.0), name=f"hurry-{self._consumer}"))
                        await self._tasks.ended()
                except TimeoutError:
                    log.info("handing_back", consumer=self._consumer, running=len(self._held))
                    self._tasks.interrupt_all()
            try:
                async with asyncio.timeout_at(max(grace_ends_s, loop.time()) + LAST_WORD_S) as last_word:
                    hurried.append(tasks.create_task(self._shorten(last_word, hurry, to_s=LAST_WORD_S), name=f"last-{self._consumer}"))
                    await self._drained()
            except TimeoutError:
                log.error("left_to_leases", consumer=self._consumer, jobs=len(self._held), what="Redis does not answer")
                settling.cancel()
            for task in hurried:
                task.cancel()
            flush_stop.set()
            tail_stop.set()
            self._settler.wake()

    @staticmethod
    async def _shorten(limit: asyncio.Timeout, hurry: asyncio.Event, *, to_s: float) -> None:
        """Once somebody hurries us a limit is over in `to_s` seconds."""
        await hurry.wait()
        over_s = asyncio.get_running_loop().time() + to_s
        with contextlib.suppress(RuntimeError):  # it is over already
            if over_s < (limit.when() or math.inf):
                limit.reschedule(over_s)

    # ---- claiming

    async def _enter(self) -> bool:
        """What comes before the first claim; waits for Redis. False when told to stop meanwhile."""
        pause_s = OUTAGE_PAUSE_S
        while not self._stop.is_set():
            try:
                await self._reader.open()
                await self._tail.open()
                await self._recover_own()
                await self._sweep_own_lane()
                return True
            except BrokerUnreachable as error:
                pause_s = await self._wait_for_redis(error, pause_s)
        return False

    async def _wait_for_redis(self, error: BrokerError, pause_s: float) -> float:
        """A pause, cut short by `stop`; returns the next one."""
        log.warning("redis_unreachable", consumer=self._consumer, error=str(error), pause_s=round(pause_s, 2))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stop.wait()
        return min(OUTAGE_PAUSE_MAX_S, pause_s * 2)

    async def _recover_own(self) -> None:
        """Puts back what an earlier boot of this name left, without waiting for its leases."""
        client = self._scripts.run_script.client
        for stream in self._reader.streams:
            while True:
                try:
                    page = await ask(client, "XPENDING", stream, self._stage.value, "-", "+", MAX_BATCH, self._consumer, parse_detail=True)
                except redis.ResponseError as error:
                    if "NOGROUP" not in str(error):
                        raise
                    break  # swept since we made it: nothing of ours is left there, and the first read makes it again
                entries: list[tuple[str, str, str, float]] = []
                for row in page:
                    found = await ask(client, "XRANGE", stream, row["message_id"], row["message_id"])
                    job = found[0][1].get(b"job", b"") if found else b""
                    entries.append((self._keys.short(stream), row["message_id"].decode(), job.decode(), self._random.random()))
                if not entries:
                    break
                words = await self._put_back(entries)
                log.info("recovered_own", consumer=self._consumer, verdicts=words)
                if "usurped" in words:
                    self._on_usurped()
                    return

    async def _sweep_own_lane(self) -> None:
        """What waits for environments that this node had in an earlier epoch goes back to INIT, uncounted, before we claim it."""
        for stream in map(self._keys.short, self._reader.streams):
            while ":@" in stream and (await self._scripts.sweep_lane(stream, self._node))[0]:
                log.warning("earlier_epoch_swept", consumer=self._consumer, stream=stream)

    async def _put_back(self, entries: Sequence[tuple[str, str, str, float]]) -> list[str]:
        """Gives back entries of this name that it does not work on."""
        return await put_back(
            self._scripts, self._settings, "restart", self._stage, entries, lease_ms=0, consumer=self._consumer, boot=self._boot
        )

    async def _claim_loop(self, stop: asyncio.Event) -> None:
        pause_s = OUTAGE_PAUSE_S
        block = False
        while not stop.is_set():
            await self._slots.wait_free(1.0)
            await self._rested()
            free = self._room()
            if free <= 0:
                continue
            count = 1 if block else min(MAX_BATCH, max(1, free // 4))
            try:
                claims, raw = await self._reader.read(count, block=block, held=self._held, most_streams=free)
                if claims:
                    await self._begin(claims)
                for entry in raw:
                    await self._reject(entry, "no header of ours")
                pause_s = OUTAGE_PAUSE_S
            except BrokerError as error:
                # unreachable, or misused meanwhile (a stream written over, a permission gone): what runs goes on, claims wait
                self._reader.mistrust()
                pause_s = await self._wait_for_redis(error, pause_s)
                continue
            block = not claims

    def _room(self) -> int:
        """Slots that may be filled now."""
        return 0 if self._stop.is_set() or self._rests else self._slots.free

    @property
    def _rests(self) -> bool:
        return time.monotonic() < self._rests_until_s

    def _rest(self, why: str) -> None:
        """Claims nothing for a while."""
        if self._rests:
            return
        now_s = time.monotonic()
        served = self.statistics.handed_off + self.statistics.settled
        self._rest_s = FIRST_REST_S if served > self._served_at_rest or not self._rest_s else min(LONGEST_REST_S, 2 * self._rest_s)
        self._served_at_rest = served
        self._rests_until_s = now_s + self._rest_s
        self._keeper.wake()  # it says that nothing more is to be placed here
        log.warning("claims_nothing", consumer=self._consumer, for_s=self._rest_s, why=why)

    async def _rested(self) -> None:
        """Returns when a rest is over, or when told to stop."""
        left_s = self._rests_until_s - time.monotonic()
        if left_s > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._stop.wait()

    async def _begin(self, claims: Sequence[Claim]) -> None:
        """Begins what there is room for; what was delivered beyond it goes back."""
        room = self._room()
        mine, beyond = claims[:room], claims[room:]
        # before the first await: the reader of another shard may have been delivered jobs for the same slots
        self._slots.take(len(mine))
        started = 0
        try:
            for at in range(0, len(mine), MAX_BATCH):
                for begun in await self._begin_batch(mine[at : at + MAX_BATCH]):
                    if begun.state == "ok":
                        self._start(begun)
                        started += 1
                    elif begun.state == "usurped":
                        self._on_usurped()
                    elif begun.state == "ended":
                        self.statistics.cancelled += 1
        finally:
            self._slots.give_back(len(mine) - started)
        for at in range(0, len(beyond), MAX_BATCH):
            await self._put_back([(claim.stream, claim.entry, claim.job, 0.0) for claim in beyond[at : at + MAX_BATCH]])

    async def _begin_batch(self, claims: Sequence[Claim]) -> list[Begun]:
        """Retried until Redis answers, since they are delivered to us and to nobody else; given up when told to stop."""
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
            except BrokerUnreachable as error:
                if self._stop.is_set():
                    return []
                pause_s = await self._wait_for_redis(error, pause_s)
            except (BrokerMisused, redis.ResponseError, ValueError) as error:
                # ValueError: what stands in a job's hash is no number
                if len(claims) > 1:
                    return [begun for claim in claims for begun in await self._begin_batch([claim])]
                claim = claims[0]
                await self._reject(RawEntry(claim.stream, claim.entry, claim.job.encode()), f"job {claim.job}: {error}")
                return []

    async def _reject(self, entry: RawEntry, why: str) -> None:
        log.warning("entry_rejected", stream=entry.stream, entry=entry.entry, why=why)
        self.statistics.rejected += 1
        await self._scripts.reject(entry.stream, self._stage, entry.entry, why, entry.fields)

    def _start(self, begun: Begun) -> None:
        held = Held(begun.claim.stream, begun.claim.entry, begun.claim.job, begun.attempt)
        control = JobControl(begun, held, keep_turn=self._settler.journal, is_cut_off=self._is_cut_off)
        self.statistics.begun += 1
        self._held[held.place] = control
        self._tasks.start(control, self._serve(control), f"{self._stage.value}-{held.job}:{held.attempt}")

    # ---- working

    async def _serve(self, control: JobControl) -> None:
        """Works on one job and ends it. Never raises: what a job does wrong stays in the job."""
        self._conclude(control, await self._end_of(control))

    def _conclude(self, control: JobControl, end: End | None) -> None:
        """Takes the end of an attempt, the first that comes; None, or a lost lease, means that its output is dropped."""
        if control.concluded:
            return
        control.concluded = True
        if isinstance(end, GivenUp) and end.is_unfit:
            self._rest(end.why)  # before it is sent: the job is claimable from then on
        if end is not None and not control.lease_lost:
            self._settler.put(control, end, int((time.monotonic() - control.started_s) * 1000))
        else:
            self.statistics.fenced += 1
            self._release(control)

    async def _end_of(self, control: JobControl) -> End | None:
        try:
            end = await self._work(control)
            fault = fault_of(end)
            if fault:
                log.error("end_not_usable", job_id=control.held.job, stage=self._stage.value, fault=fault)
            return GivenUp("failed", f"not usable: {fault}") if fault else end
        except asyncio.CancelledError:
            # interrupted by a verdict on this job, or by the end of the grace period: both end here, with the job's end as the answer
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                return GivenUp("failed", "CancelledError: the work waited for something that it had cancelled itself")
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

    def _conclude_interrupted(self, control: JobControl) -> None:
        self._conclude(control, control.interrupted())

    def _on_work_gone(self, control: JobControl) -> None:
        """Its work has ended, perhaps before it ran a line of `_serve`, or was left behind."""
        self._conclude_interrupted(control)
        self._free_slot(control)

    def _release(self, control: JobControl) -> None:
        """Its job is ours no more."""
        if self._held.pop(control.held.place, None) is not None:
            self._free_slot(control)
            self._released.set()

    def _free_slot(self, control: JobControl) -> None:
        """A slot is free when neither the job nor its work is there any more."""
        if control.holds_slot and control.held.place not in self._held and not self._tasks.works(control):
            control.holds_slot = False
            self._slots.give_back(1)

    # ---- leaving

    async def _drained(self) -> None:
        """Waits until what was finished is settled."""
        while self._held:
            self._released.clear()
            self._settler.wake()
            await self._released.wait()

    # ---- what others tell us

    def _on_cancel(self, message: CancelMessage) -> None:
        for control in list(self._held.values()):
            claim = control.begun.claim
            if message.means(claim.job, claim.group, claim.run, control.begun.incarnation):
                control.verdict(message.reason)
        if self._tell_cancel is not None:
            self._tell_cancel(message)

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
