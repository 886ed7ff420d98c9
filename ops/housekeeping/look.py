"""What housekeeping has done and who does it, from what RQ keeps: for `rollstream housekeeping list`. Read only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from redis import Redis

from ops.housekeeping.jobs import JOBS
from ops.housekeeping.queue import HousekeepingQueue, naming_outages


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The last time that a job was asked for."""

    id: str
    node: str
    """Machine it was for; empty = any."""
    state: str
    """`queued`, `started`, `finished`, `failed`, ...; `expired` when its record is gone."""
    asked_s: float
    """Since it was asked for."""
    found: Any
    """What it answered, or why it failed; None = nothing yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLook:
    """One job."""

    name: str
    does: str
    where: str
    every_s: float
    """0 = never by itself."""
    last: tuple[LastRun, ...]
    """One, or one a machine; the newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HousekeepingLook:
    """All of it."""

    jobs: tuple[JobLook, ...]
    crons: Mapping[str, float]
    """Replica -> seconds since its cron gave a sign; without those that gave none for two minutes."""
    workers: Mapping[str, int]
    """Queue -> workers."""
    waiting: Mapping[str, int]
    """Queue -> jobs that wait."""


def look(housekeeping: HousekeepingQueue) -> HousekeepingLook:
    """Reads it.

    Raises:
        BrokerError
    """
    with naming_outages():
        return _look(housekeeping)


def _look(housekeeping: HousekeepingQueue) -> HousekeepingLook:
    housekeeping.import_rq()
    from rq import Queue, Worker, cron_job_registry, cron_scheduler_registry
    from rq.cron import get_cron_job_history_key
    from rq.defaults import DEFAULT_CRON_SCHEDULER_TTL

    client = housekeeping.client
    seconds, micros = client.time()
    now_s = float(seconds) + float(micros) / 1e6
    names = cron_job_registry.get_names(client, cleanup=False)
    jobs = []
    for job in JOBS.values():
        runs = []
        for name in names:
            node = "" if name == job.name else name.removeprefix(f"{job.name}-")
            if node == name or bool(node) != (job.where == "each node"):
                continue
            newest = _scored(client, get_cron_job_history_key(name), newest_only=True)
            runs += [_last(housekeeping, job_id, node, now_s - score) for job_id, score in newest]
        last = tuple(sorted(runs, key=lambda run: run.asked_s))
        jobs.append(JobLook(name=job.name, does=job.does, where=job.where, every_s=job.every_s(housekeeping.settings), last=last))
    crons = {name: max(0.0, now_s - beat_s) for name, beat_s in _scored(client, cron_scheduler_registry.get_registry_key())}
    queues = {queue.name: queue for queue in Queue.all(connection=client)}
    for name in (housekeeping.shared, housekeeping.images, housekeeping.own):
        queues.setdefault(name, housekeeping.rq_queue(name))
    return HousekeepingLook(
        jobs=tuple(jobs),
        crons={name: age_s for name, age_s in crons.items() if age_s <= DEFAULT_CRON_SCHEDULER_TTL},
        workers={name: Worker.count(queue=queue) for name, queue in sorted(queues.items())},
        waiting={name: queue.count for name, queue in sorted(queues.items())},
    )


def _scored(client: Redis, key: str, *, newest_only: bool = False) -> list[tuple[str, float]]:
    found = cast(list[tuple[bytes, float]], client.zrange(key, 0, 0 if newest_only else -1, desc=newest_only, withscores=True))
    return [(word.decode("utf-8", "replace"), score) for word, score in found]


def _last(housekeeping: HousekeepingQueue, job_id: str, node: str, asked_s: float) -> LastRun:
    from rq.exceptions import NoSuchJobError

    try:
        state, found = housekeeping.result(job_id)
    except NoSuchJobError:
        state, found = "expired", None
    return LastRun(id=job_id, node=node, state=state, asked_s=asked_s, found=found)


__all__ = ["HousekeepingLook", "JobLook", "LastRun", "look"]
