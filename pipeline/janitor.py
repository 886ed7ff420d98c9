"""Puts right what dead processes left: expired leases, due retries, passed deadlines, lanes of dead nodes, old consumers, lost entries.
Runs whose trainer is gone are closed here too, and a sample a minute is kept of how fast things go.

It runs in every worker and supervisor process. One of them does a round at a time, and it is right with any number: every action is a
script that judges again inside. It stamps its rounds; after a gap (Redis was away) no lease, heartbeat or deadline is judged for one full
lease, so an outage costs nobody an attempt.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

import redis
import structlog

from pipeline.errors import BrokerError, BrokerMisused
from pipeline.keys import Keys
from pipeline.messages import CancelReason, Stage
from pipeline.recovery import put_back
from pipeline.redis_client import AsyncClient, ask
from pipeline.samples import keep_sample
from pipeline.scripts.calls import MAX_BATCH, Scripts
from pipeline.scripts.run_calls import GoneRun, RunScripts
from pipeline.settings import QueueSettings

log = structlog.get_logger(__name__)

SHORTEST_PERIOD_S = 0.1
LONGEST_PERIOD_S = 5.0
ROUNDS_A_LEASE = 4
RECONCILE_EVERY_ROUNDS = 20
SAMPLE_EVERY_ROUNDS = 12
"""A minute of the longest period."""
CONSUMERS_EVERY_ROUNDS = 200
CONSUMER_IDLE_S = 3600.0
RUNS_A_PAGE = 256
RECOVER_PAGES = 8
"""Most pages of expired entries a round and stream: a bounded rate, so that a lost node does not flood the others."""


class Janitor:
    """The janitor of one shard, in one process.

    Args:
        who: name of the process.
        consumers_every: rounds between looks at old consumers.
        consumer_idle_s: one that did nothing for so long, holds nothing and has no process is deleted.
    """

    def __init__(
        self,
        client: AsyncClient,
        scripts: Scripts,
        keys: Keys,
        settings: QueueSettings,
        who: str,
        *,
        consumers_every: int = CONSUMERS_EVERY_ROUNDS,
        consumer_idle_s: float = CONSUMER_IDLE_S,
    ) -> None:
        self._client = client
        self._scripts = scripts
        self._run_scripts = RunScripts(client, keys)
        self._keys = keys
        self._settings = settings
        self._who = who
        self._consumers_every = consumers_every
        self._consumer_idle_s = consumer_idle_s
        self._random = random.Random()
        self._round = 0
        self._wake_ups_lost = 0
        self.period_s = min(LONGEST_PERIOD_S, max(SHORTEST_PERIOD_S, settings.lease_s / ROUNDS_A_LEASE))

    async def run(self, stop: asyncio.Event) -> None:
        """Does rounds until `stop` is set; an unreachable Redis is waited for."""
        while not stop.is_set():
            wait_s = self.period_s
            try:
                acting, quiet, wake_ups_lost = await self._scripts.janitor_round(
                    self._who, period_ms=int(self.period_s * 1000), lease_ms=int(self._settings.lease_s * 1000)
                )
                if acting:
                    self._tell_lost(wake_ups_lost)
                    wait_s = min(wait_s, await self.round(quiet=quiet))
            except (BrokerError, redis.RedisError, OSError) as error:
                log.warning("janitor_round_failed", error=str(error))
            try:
                async with asyncio.timeout(wait_s):
                    await stop.wait()
            except TimeoutError:
                continue

    def _tell_lost(self, wake_ups: int) -> None:
        if wake_ups > self._wake_ups_lost:
            why = f"{self._keys.reward} takes no events (WRONGTYPE?): supervisors look each second only; rename or delete it"
            log.error("reward_stream_unusable", lost=wake_ups - self._wake_ups_lost, what=why)
        self._wake_ups_lost = wake_ups

    async def round(self, *, quiet: bool) -> float:
        """One round; returns the seconds until the next is worth while. A part that fails does not keep the others from their work."""
        self._round += 1
        streams = sorted(word.decode() for word in await ask(self._client, "SMEMBERS", self._keys.key("streams")))
        parts: list[Callable[[], Awaitable[object]]] = []
        if not quiet:
            parts += [partial(self._recover_expired, stream) for stream in streams]
            parts += [self._scripts.expire_deadlines]
            parts += [partial(self._sweep_lane, stream) for stream in streams if ":@" in stream]
            parts += [self._close_gone_runs]
        parts += [self._admit]
        if self._round % SAMPLE_EVERY_ROUNDS == 0:
            parts += [partial(keep_sample, self._client, self._keys)]
        if self._round % RECONCILE_EVERY_ROUNDS == 0:
            parts += [self._reconcile]
        if self._round % self._consumers_every == 0:
            parts += [partial(self._delete_idle_consumers, stream) for stream in streams]
        for part in parts:
            try:
                await part()
            except (BrokerError, redis.RedisError, OSError, ValueError) as error:  # ValueError: a key holds something else than ours
                log.warning("janitor_part_failed", error=str(error))
        return await self._promote()

    async def _admit(self) -> None:
        classes = sorted(word.decode() for word in await ask(self._client, "SMEMBERS", self._keys.key("classes")))
        if classes:
            await self._scripts.admit(classes, self._settings.admit_window)

    async def _recover_expired(self, stream: str) -> None:
        full, stage, lease_ms = self._keys.key(stream), stage_of(stream), int(self._settings.lease_s * 1000)
        after = "-"
        for _ in range(RECOVER_PAGES):
            try:
                page = await ask(self._client, "XPENDING", full, stage.value, "IDLE", lease_ms, after, "+", MAX_BATCH, parse_detail=True)
            except redis.ResponseError as error:
                if "NOGROUP" not in str(error):
                    log.error("stream_unusable", stream=stream, error=str(error))
                return
            if not page:
                return
            await self._recover(stream, [row["message_id"].decode() for row in page])
            after = "(" + page[-1]["message_id"].decode()

    async def _recover(self, stream: str, entries: list[str]) -> None:
        full, stage = self._keys.key(stream), stage_of(stream)
        jobs: list[tuple[str, str, str, float]] = []
        for entry in entries:
            found = await ask(self._client, "XRANGE", full, entry, entry)
            header: dict[bytes, bytes] = found[0][1] if found else {}
            if b"job" in header:
                jobs.append((stream, entry, header[b"job"].decode(), self._random.random()))
            else:
                await self._scripts.reject(stream, stage, entry, "no header", b"\n".join(part for pair in header.items() for part in pair))
        words: list[str] = []
        if jobs:
            lease_ms = int(self._settings.lease_s * 1000)
            words = await put_back(
                self._scripts, self._settings, "idle", stage, jobs, lease_ms=lease_ms, consumer=self._who, boot="janitor"
            )
        for (_, _, job_id, _), word in zip(jobs, words, strict=True):
            if word not in ("fresh", "stale"):
                log.info("lease_expired", job_id=job_id, stream=stream, verdict=word)

    async def _sweep_lane(self, stream: str) -> None:
        node = stream.split(":@", 1)[1]
        back, left, deleted = await self._scripts.sweep_lane(stream, node)
        if back:
            log.warning("lane_swept", node=node, sent_back=back, left=left, deleted=deleted)
        elif deleted:
            log.info("lane_removed", node=node, stream=stream)

    async def _close_gone_runs(self) -> None:
        place = 0
        while place >= 0:
            place, gone = await self._run_scripts.close_gone_runs(place, RUNS_A_PAGE)
            for run in gone:
                try:
                    await self._end_gone_run(run)
                except (BrokerMisused, redis.ResponseError) as error:
                    log.error("run_unusable", run=run.run, error=str(error))

    async def _end_gone_run(self, gone: GoneRun) -> None:
        """Cancels the jobs of a closed run. Whoever dies in between is followed by another: a closed run with open jobs is found again."""
        reason = CancelReason.ABANDONED.value
        counts = await self._scripts.cancel("run", [gone.run], reason, incarnation=gone.incarnation)
        if gone.closed_now:
            log.warning(
                "run_closed",
                run=gone.run,
                incarnation=gone.incarnation,
                why="its trainer gave no sign",
                silent_s=round(gone.silent_s, 1),
                cancelled=counts["settled"],
                running=counts["running"],
            )

    async def _promote(self) -> float:
        while True:
            promoted, next_s = await self._scripts.promote()
            if promoted < MAX_BATCH:
                return self.period_s if next_s is None else max(0.01, next_s)

    async def _reconcile(self) -> None:
        for run in await ask(self._client, "ZRANGE", self._keys.key("runs"), 0, -1):
            try:
                await self._reconcile_run(run.decode())
            except (BrokerMisused, redis.ResponseError) as error:
                log.error("run_unusable", run=run.decode(), error=str(error))

    async def _reconcile_run(self, run: str) -> None:
        cursor = "0"
        while True:
            cursor, back = await self._scripts.reconcile(run, cursor)
            if back:
                log.warning("jobs_put_back", run=run, jobs=back)
            if cursor == "0":
                return

    async def _delete_idle_consumers(self, stream: str) -> None:
        stage = stage_of(stream)
        for info in await ask(self._client, "XINFO CONSUMERS", self._keys.key(stream), stage.value):
            if info["pending"] == 0 and info["idle"] / 1000 >= self._consumer_idle_s:
                await self._scripts.drop_consumer(stream, stage, info["name"].decode())


def stage_of(stream: str) -> Stage:
    """The stage of a stream's short name (`s:run:@node` -> RUN)."""
    return Stage(stream.split(":")[1])
