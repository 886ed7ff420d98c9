"""The cron of housekeeping: RQ's scheduler, with our way to enqueue. Imported only after `HousekeepingQueue.import_rq`.

Every replica runs one, and all try to enqueue the same ticks: tick number `now div period` of a job, by the clock of Redis, is part of the
RQ job's id, and RQ's unique enqueue lets one through. So there is no leader, and the death of any costs nothing. RQ's own `enqueue_jobs`
would enqueue once a replica, with pickle, by the clock of each machine.

What stays RQ's: the registry of schedulers with heartbeats, the names of cron jobs, and which RQ jobs they made.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import redis
import structlog
from rq import cron_job_registry, cron_scheduler_registry
from rq.cron import CronJob, CronScheduler
from rq.defaults import DEFAULT_CRON_JOB_HISTORY_LIMIT, DEFAULT_CRON_JOB_HISTORY_TTL

from ops.housekeeping.jobs import JOBS, RUN, HousekeepingJob
from ops.housekeeping.queue import HousekeepingQueue

log = structlog.get_logger(__name__)

LONGEST_SLEEP_S = 1.0
"""Between two looks at the clock and at the workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the cron."""

    job: HousekeepingJob
    queue: str
    every_s: float

    @property
    def name(self) -> str:
        """Of the line: jobs of a machine have one a machine."""
        return self.job.name if self.job.where == "anywhere" else f"{self.job.name}-{self.queue.removeprefix('node-')}"

    def tick(self, now_s: float) -> int:
        """Number of the period that a moment lies in."""
        return int(now_s // self.every_s)

    def job_id(self, tick: int) -> str:
        """The RQ job of a tick. RQ takes letters, digits, - and _ in an id."""
        return f"{self.name.replace('.', '_')}-{tick}"


def entries(housekeeping: HousekeepingQueue) -> list[Entry]:
    """The lines of the cron of this machine: jobs that run by themselves."""
    settings = housekeeping.settings
    lines = [
        Entry(job=job, queue=housekeeping.shared if job.where == "anywhere" else housekeeping.own, every_s=job.every_s(settings))
        for job in JOBS.values()
    ]
    return [line for line in lines if line.every_s]


class OurCron(CronScheduler):
    """The scheduler of one replica.

    Args:
        tend: called at each look; whoever runs the workers looks after them there.
    """

    def __init__(self, housekeeping: HousekeepingQueue, lines: Sequence[Entry], *, name: str, tend: Callable[[], None]) -> None:
        super().__init__(connection=housekeeping.client, logging_level="WARNING", name=name)
        self._housekeeping = housekeeping
        self._tend = tend
        self._lines = {
            line.name: (
                line,
                CronJob(line.queue, func_name=RUN, kwargs={"name": line.job.name}, interval=max(1, int(line.every_s)), name=line.name),
            )
            for line in lines
        }
        self._cron_jobs = [shown for _, shown in self._lines.values()]
        self._ticks: dict[str, int] = {}

    def enqueue_jobs(self) -> list[CronJob]:
        """Enqueues the ticks that began since the last look, unless another replica has; an outage is waited for."""
        self._tend()
        try:
            now_s = self._now_s()
            return [shown for line, shown in self._lines.values() if self._enqueue(line, shown, now_s)]
        except (redis.RedisError, OSError) as error:
            log.warning("cron_not_reachable", error=str(error))
            return []

    def _enqueue(self, line: Entry, shown: CronJob, now_s: float) -> bool:
        tick = line.tick(now_s)
        if self._ticks.get(line.name) == tick:
            return False
        job = self._housekeeping.enqueue_tick(line.queue, line.job.name, line.job_id(tick), period_s=line.every_s)
        self._ticks[line.name] = tick
        shown.set_enqueue_time(datetime.fromtimestamp(tick * line.every_s, UTC))
        if job is None:
            return True
        with self.connection.pipeline() as pipe:
            pipe.zadd(shown.job_history_key, {job.id: now_s})
            pipe.zremrangebyrank(shown.job_history_key, 0, -(DEFAULT_CRON_JOB_HISTORY_LIMIT + 1))
            pipe.expire(shown.job_history_key, DEFAULT_CRON_JOB_HISTORY_TTL)
            cron_job_registry.add(shown.name, pipe, enqueue_timestamp=now_s)
            pipe.execute()
        log.info("housekeeping_asked_for", job=line.job.name, id=job.id)
        return True

    def _now_s(self) -> float:
        seconds, micros = self.connection.time()
        return float(seconds) + float(micros) / 1e6

    def calculate_sleep_interval(self) -> float:
        """Not longer than workers may go unseen."""
        return LONGEST_SLEEP_S

    def heartbeat(self) -> None:
        """As RQ; a Redis that is away is waited for."""
        with contextlib.suppress(redis.RedisError, OSError):
            super().heartbeat()

    def save(self, pipeline: object = None) -> None:
        """As RQ; a Redis that is away is waited for."""
        with contextlib.suppress(redis.RedisError, OSError):
            super().save(pipeline)  # type: ignore[arg-type]  # RQ's own type, which is only passed on

    def register_birth(self) -> None:
        """As RQ; a Redis that is away is waited for."""
        while True:
            try:
                cron_scheduler_registry.cleanup(self.connection)  # names of those that were killed
                return super().register_birth()
            except (redis.RedisError, OSError) as error:
                log.warning("cron_not_reachable", error=str(error))
                time.sleep(LONGEST_SLEEP_S)

    def register_death(self, pipeline: object = None) -> None:
        """As RQ; one that is not there any more, or a Redis that is away, does not matter at the end."""
        from rq.exceptions import SchedulerNotFound

        with contextlib.suppress(redis.RedisError, OSError, SchedulerNotFound):
            super().register_death(pipeline)  # type: ignore[arg-type]  # as above


__all__ = ["Entry", "OurCron", "entries"]
