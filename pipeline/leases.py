"""Keeps the leases of a worker process alive, from a thread with its own connection.

Invariants:
  1. A busy or blocked event loop does not lose a lease: the thread renews without it.
  2. A lease proves work, not life: a job is renewed only while it says that it makes progress. `JobControl.progress(within_s)` promises the
     next sign of life; waiting for the inference pool and a call within its own timeout are progress. A job whose promise has lapsed is
     interrupted (`silent`): its lease will be another's, and its slot must not stay its own.
  3. What the server says about a job (not yours any more, cancelled) reaches the job on the event loop, once.
  4. A process without contact for two leases starts no model or tool call (`contact_age_s` is what the gate looks at).
  5. A process whose name another boot has taken stops: `on_usurped`.
  6. A job that the server called cancelled is renewed no longer than its work may take to end: when the event loop hears nothing, since
     something blocks it, the lease runs out and the job is ended by whoever finds it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Protocol

import redis
import structlog

from pipeline.attempts import LOST, SILENT
from pipeline.clock_skew import clock_skew_ms
from pipeline.errors import BrokerError
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import SyncClient, thread_client
from pipeline.scripts.calls import Held, LaneReader, NameHolder
from pipeline.scripts.runner import Arg, ThreadScriptRunner
from pipeline.settings import QueueSettings

log = structlog.get_logger(__name__)

RENEWALS_A_LEASE = 4
LEASES_A_CALL = 128
"""A renewal is a small part of what other scripts do for a job: so many hold the server for about a millisecond."""
UNREACHABLE_PAUSE_S = 0.5
CANCELLED_RENEWED_S = 10.0
"""Twice what `interruption.LEFT_BEHIND_S` gives work that does not end."""


class LeasedJob(Protocol):
    """What the keeper knows of a job."""

    held: Held

    def makes_progress(self, now_s: float) -> bool:
        """Whether its last promise of a sign of life still stands, by the monotonic clock."""


class LeaseKeeper:
    """Renews leases of one consumer on one shard.

    Args:
        snapshot: the jobs held now; called from the thread, must be safe there.
        on_verdict: called on the event loop with a job and `lost`, `silent` or a cancel reason.
        on_usurped: called on the event loop when the name is another's.
        holder: this process, said with each renewal.
        beat: also says that its node is alive: (epoch, whether this process reads the node's lane).
        lane: what it says of itself as a reader of a lane; None = nothing.
        claims: whether jobs may still be put into that lane for it. Called from the thread.
        idle_why: why this process claims nothing, said with each renewal; empty = it claims. Called from the thread.
        wall_s: this machine's clock; how far it is from that of Redis is said with each renewal.
    """

    def __init__(
        self,
        settings: QueueSettings,
        keys: Keys,
        stage: Stage,
        consumer: str,
        boot: str,
        holder: NameHolder,
        *,
        snapshot: Callable[[], list[LeasedJob]],
        on_verdict: Callable[[LeasedJob, str], None],
        on_usurped: Callable[[], None],
        beat: tuple[str, bool],
        lane: LaneReader | None = None,
        claims: Callable[[], bool] = lambda: True,
        idle_why: Callable[[], str] = str,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._stage = stage
        self._consumer = consumer
        self._boot = boot
        self._holder = holder
        self._snapshot = snapshot
        self._on_verdict = on_verdict
        self._on_usurped = on_usurped
        self._beat = beat
        self._lane = lane
        self._claims = claims
        self._idle_why = idle_why
        self._wall_s = wall_s
        self._loop = asyncio.get_running_loop()
        self._wake = threading.Event()
        self._stopping = False
        self._told_s: dict[tuple[str, str], float] = {}
        """By place, since when the server says that its job is cancelled."""
        self._last_contact_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"leases-{consumer}", daemon=True)

    async def __aenter__(self) -> LeaseKeeper:
        self._last_contact_s = time.monotonic()  # who enters has just heard from Redis
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join)

    def wake(self) -> None:
        """Renews everything now, for when something may have been missed."""
        self._wake.set()

    @property
    def contact_age_s(self) -> float:
        """Seconds since the server last answered."""
        return time.monotonic() - self._last_contact_s

    def _run(self) -> None:
        period_s = self._settings.lease_s / RENEWALS_A_LEASE
        with thread_client(self._settings) as client:
            scripts = ThreadScriptRunner(client, self._keys)
            while not self._stopping:
                try:
                    self._renew(scripts, skew_ms=self._skew_ms(client))
                    self._last_contact_s = time.monotonic()
                    wait_s = period_s
                except (BrokerError, redis.RedisError) as error:
                    log.warning("lease_renewal_failed", error=str(error), contact_age_s=round(self.contact_age_s, 1))
                    wait_s = min(period_s, UNREACHABLE_PAUSE_S)
                self._wake.wait(wait_s)
                self._wake.clear()

    def _skew_ms(self, client: SyncClient) -> int:
        """How far this machine's clock is ahead of that of Redis, as far as the time of the question lets one tell."""
        before_s = self._wall_s()
        seconds, micros = client.time()
        return clock_skew_ms(before_s, seconds + micros / 1e6, self._wall_s())

    def _renew(self, scripts: ThreadScriptRunner, *, skew_ms: int) -> None:
        now_s = time.monotonic()
        jobs: list[LeasedJob] = []
        held_now = self._snapshot()
        if self._told_s:
            places = {job.held.place for job in held_now}
            self._told_s = {place: told_s for place, told_s in self._told_s.items() if place in places}
        for job in held_now:
            if now_s - self._told_s.get(job.held.place, now_s) > CANCELLED_RENEWED_S:
                log.warning("cancelled_job_not_renewed", job_id=job.held.job, what="its work does not end; its lease runs out")
            elif job.makes_progress(now_s):
                jobs.append(job)
            else:
                self._post(self._on_verdict, job, SILENT)
        lock_ms = int(self._settings.lease_s * 1000)
        # an empty renewal keeps the name
        for at in range(0, max(1, len(jobs)), LEASES_A_CALL):
            batch = jobs[at : at + LEASES_A_CALL]
            args: list[Arg] = [self._stage.value, self._consumer, self._boot, lock_ms, *self._holder.words, skew_ms, self._idle_why()]
            for job in batch:
                held = job.held
                args += [held.stream, held.entry, held.job, held.attempt]
            reply = scripts("renew", *args)
            if reply[0] != 1:
                self._post(self._on_usurped)
                return
            for job, word in zip(batch, reply[1:], strict=True):
                if word == 0:
                    self._post(self._on_verdict, job, LOST)
                elif word != 1 and isinstance(word, bytes):
                    self._told_s.setdefault(job.held.place, now_s)
                    self._post(self._on_verdict, job, word.decode())
        epoch, reads_lane = self._beat
        lane = () if self._lane is None else self._lane.words(claims=self._claims() and not self._idle_why())
        scripts("beat_node", self._holder.node, epoch, 3 * lock_ms // RENEWALS_A_LEASE + 1000, int(reads_lane), 0, *lane)

    def _post(self, call: Callable[..., None], *args: object) -> None:
        if not self._stopping:
            self._loop.call_soon_threadsafe(call, *args)
