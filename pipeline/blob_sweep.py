"""Deletes what nobody needs any more: of killed workers, killed trainers, lost attempts.

A life is needed while its job is known and
  - its attempt is the one whose trajectory is kept, or
  - the job has not ended and no later attempt has begun: it may write, and hand off, at any moment.

Invariants:
  1. The store is listed first and Redis asked afterwards: what was written meanwhile was not listed, and is not deleted.
  2. What Redis said may be old by the time of the deletion, but never wrong in the way that matters: a fenced attempt hands off nothing,
     and a job that begins a second life in Redis has another folder (`pipeline/blobs/names.py`).
  3. What is younger than the grace stays, and so does, for a longer one, what belongs to a run that Redis does not know: another Redis
     knows none of our runs either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import redis

from pipeline.blobs.store import BlobStore, KeptLife
from pipeline.keys import Keys, run_of, shard_of
from pipeline.redis_client import AsyncClient, ask, broker_error

GRACE_S = 3600.0
UNKNOWN_RUN_GRACE_S = 14 * 86_400.0
AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did."""

    seen: int
    deleted: int


@dataclass(frozen=True, slots=True)
class JobState:
    """What Redis says of a job."""

    ended: bool
    attempt: int
    kept_attempt: int
    """Attempt whose trajectory is kept; 0 = none."""


async def sweep_blobs(
    store: BlobStore,
    client: AsyncClient,
    *,
    namespace: str,
    shards: int = 1,
    run: str = "",
    grace_s: float = GRACE_S,
    unknown_run_grace_s: float = UNKNOWN_RUN_GRACE_S,
    dry_run: bool = False,
) -> Swept:
    """Deletes lives that nobody needs, beside workers and trainers.

    Args:
        run: only of this one, as its trainer does; empty = of all, for housekeeping.
        dry_run: nothing is deleted, and what would be is counted.

    Raises:
        BrokerError
    """
    old = [kept for kept in await asyncio.to_thread(lambda: list(store.lives(run))) if kept.age_s >= grace_s]
    deleted = 0
    known_runs: dict[str, bool] = {}
    for at in range(0, len(old), AT_ONCE):
        part = old[at : at + AT_ONCE]
        for run in {kept.life.run for kept in part} - known_runs.keys():
            keys = Keys.of_shard(namespace, shard_of(run, shards))
            known_runs[run] = bool(await ask(client, "EXISTS", keys.run(run)))
        states = await job_states(client, [kept.life.job for kept in part], namespace=namespace, shards=shards)
        unneeded = [kept for kept in part if not _is_needed(kept, states, known_runs, unknown_run_grace_s)]
        deleted += len(unneeded) if dry_run else await asyncio.to_thread(store.drop, [kept.life for kept in unneeded])
    return Swept(len(old), deleted)


def _is_needed(kept: KeptLife, states: Mapping[str, JobState | None], known_runs: Mapping[str, bool], unknown_run_grace_s: float) -> bool:
    state = states[kept.life.job]
    if state is None:
        return not known_runs[kept.life.run] and kept.age_s < unknown_run_grace_s
    return kept.life.attempt == state.kept_attempt or (not state.ended and kept.life.attempt >= state.attempt)


async def job_states(client: AsyncClient, jobs: Sequence[str], *, namespace: str, shards: int = 1) -> dict[str, JobState | None]:
    """What Redis says of jobs, many in one round; None = it knows none of that id.

    Raises:
        BrokerError
    """
    found: dict[str, JobState | None] = {}
    todo = iter(dict.fromkeys(jobs))
    while part := list(islice(todo, AT_ONCE)):
        pipe = client.pipeline(transaction=False)
        for job in part:
            keys = Keys.of_shard(namespace, shard_of(run_of(job), shards))
            pipe.hmget(keys.job(job), "st", "att", "b.run")
        try:
            answers = await pipe.execute()
        except (redis.RedisError, OSError) as error:
            raise broker_error(error) from error
        for job, (state, attempt, kept) in zip(part, answers, strict=True):
            found[job] = None if state is None else JobState(state == b"done", int(attempt or 0), int(kept or 0))
    return found


__all__ = ["GRACE_S", "UNKNOWN_RUN_GRACE_S", "JobState", "Swept", "job_states", "sweep_blobs"]
