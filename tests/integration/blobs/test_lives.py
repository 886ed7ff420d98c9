"""How long a blob is there: as long as what names it, and what nothing names any more is swept."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace

import numpy as np
import pytest

from pipeline import codec
from pipeline.blob_sweep import UNKNOWN_RUN_GRACE_S, Swept, sweep_blobs
from pipeline.blobs import IMAGE, Life, SharedFolder
from pipeline.messages import Recovery, SegmentImage, Stage, Trajectory
from pipeline.redis_client import ask
from pipeline.scripts import JournalTurn
from pipeline.settings import QueueSettings
from pipeline.testing import ManualWorker, a_template, a_trajectory, carry, wait_until
from tests.integration.stages.fleet import RUN, TASK, Fleet, Play, a_delta
from tests.prompt_image_files import a_png
from trainer_client import connect
from trainer_client.run_blobs import RunBlobs
from workers.handlers.base import RunContext

pytestmark = pytest.mark.one_server
SOME = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)


async def swept(fleet: Fleet, store: SharedFolder, *, grace_s: float = 0.0, unknown_run_grace_s: float = UNKNOWN_RUN_GRACE_S) -> Swept:
    """With no grace, unless said."""
    namespace = fleet.settings.namespace
    return await sweep_blobs(store, fleet.client, namespace=namespace, grace_s=grace_s, unknown_run_grace_s=unknown_run_grace_s)


def attempts(store: SharedFolder, job: str) -> list[int]:
    return sorted(kept.life.attempt for kept in store.lives() if kept.life.job == job)


async def keeping(context: RunContext) -> Trajectory:
    """RUN that keeps an array beside its one segment."""
    whole = a_trajectory()
    blob = await context.keep_blob("log", SOME)
    return replace(whole, segments=(replace(whole.segments[0], blobs=(blob,)),))


async def test_an_attempt_that_fails_takes_what_it_kept_with_it(fleet: Fleet, store: SharedFolder) -> None:
    failures = [RuntimeError("after it was kept")]

    async def run(context: RunContext) -> Trajectory:
        found = await keeping(context)
        if failures:
            raise failures.pop()
        return found

    (job,) = await fleet.add("job")
    fleet.start(play=Play(on_run=run))

    record = await fleet.result()
    trajectory = await fleet.trajectory(record)

    assert attempts(store, job) == [int(record["ra"])]
    assert np.array_equal(store.get(trajectory.segments[0].blobs[0], job), SOME)


async def test_a_sweep_takes_what_no_record_can_name_and_nothing_else(fleet: Fleet, store: SharedFolder) -> None:
    """Of a job that runs: what a killed attempt left goes, what this one writes stays, and when that one has
    handed off, it stays though EVAL has a higher number by then."""
    (job,) = await fleet.add("job")
    (running,) = await carry(fleet.scripts, to=Stage.RUN)
    now = running.attempt
    for attempt in (now - 1, now):
        store.put(Life.new(job, attempt), "log", SOME)
    unknown = f"{RUN}.nobody"
    store.put(Life.new(unknown, 1), "log", SOME)
    foreign = "otherrun.job"
    store.put(Life.new(foreign, 1), "log", SOME)

    assert (await swept(fleet, store, grace_s=3600.0)).deleted == 0, "all of it is younger than the grace"
    first = await swept(fleet, store)
    assert first == Swept(seen=4, deleted=2)
    assert (attempts(store, job), attempts(store, unknown), attempts(store, foreign)) == ([now], [], [1])

    assert await ManualWorker(fleet.scripts, Stage.RUN).hand_off(running) == ["ok"]
    await ManualWorker(fleet.scripts, Stage.EVAL).take()
    assert int((await fleet.audit.job(job))["att"]) > now
    assert (await swept(fleet, store)).deleted == 0
    assert attempts(store, job) == [now]
    assert (await swept(fleet, store, unknown_run_grace_s=0.0)).deleted == 1
    assert attempts(store, foreign) == []


async def test_a_deadline_in_run_keeps_what_the_finished_turns_name(fleet: Fleet, store: SharedFolder) -> None:
    """Images are named by the journal, and so by the partial trajectory that it becomes."""

    async def slow(context: RunContext) -> Trajectory:
        turn = a_delta(0)
        blob = await context.keep_blob(IMAGE, np.frombuffer(a_png(), np.uint8), part=0)
        image = SegmentImage(start=0, end=1, media_type="image/png", width=56, height=28, blob=blob)
        await context.journal(replace(turn, segments=(replace(turn.segments[0], images=(image,)),)))
        await asyncio.Event().wait()
        raise AssertionError

    (job,) = await fleet.add("job", template=a_template(task=TASK, wall_s=1.0))
    fleet.start(play=Play(on_run=slow))

    record = await fleet.result(timeout_s=15)
    (image,) = (await fleet.trajectory(record)).segments[0].images

    assert record["why"] == "deadline"
    assert (await swept(fleet, store)).deleted == 0
    assert store.get(image.blob, job).tobytes() == a_png()


async def test_what_the_journal_of_a_lost_attempt_names_stays_until_it_is_graded_and_after(fleet: Fleet, store: SharedFolder) -> None:
    (job,) = await fleet.add("job", template=a_template(task=TASK, recovery=Recovery.SALVAGE_PARTIAL))
    (held,) = await carry(fleet.scripts, to=Stage.RUN)
    store.put(Life.new(job, held.attempt), IMAGE, SOME.reshape(-1))
    assert await fleet.scripts.journal([JournalTurn(job, held.attempt, 0, codec.encode(a_delta(0)))], ttl_ms=60_000) == ["1"]
    await ask(fleet.client, "HSET", fleet.keys.key("janitor"), "quiet_until", 0)

    assert await ManualWorker(fleet.scripts, Stage.RUN).recover("idle", held) == ["salvaged"]
    assert (await swept(fleet, store)).deleted == 0
    await ManualWorker(fleet.scripts, Stage.EVAL).take()
    assert (await swept(fleet, store)).deleted == 0
    assert attempts(store, job) == [held.attempt]


async def test_a_job_that_redis_forgot_and_ran_again_keeps_its_second_life(fleet: Fleet, store: SharedFolder) -> None:
    """Redis lost its last second. A sweep has listed the first life of the job and heard that nobody knows it; before it deletes, the
    trainer submits the job again, and attempt 1 of it writes, too."""
    job = f"{RUN}.job"
    first = store.put(Life.new(job, 1), "log", SOME)
    listed = [kept.life for kept in store.lives()]

    await fleet.add("job")
    second = store.put(Life.new(job, 1), "log", SOME + 1)
    store.drop(listed)

    assert np.array_equal(store.get(second, job), SOME + 1)
    assert first.uri != second.uri
    assert attempts(store, job) == [1]


def make_old(store: SharedFolder) -> None:
    """As if all of it were from two hours ago."""
    for path in store.root.glob("*/*/*/*"):
        os.utime(path, (time.time() - 7200, time.time() - 7200))


async def test_a_trainer_that_connects_takes_away_what_the_last_one_missed(settings: QueueSettings, store: SharedFolder) -> None:
    """Killed between an ack and the deletion, or while a worker was killed: no record names it, and nobody else would look."""
    store.put(Life.new("moe.acked", 3), "log", SOME)
    store.put(Life.new("other.job", 3), "log", SOME)
    make_old(store)
    store.put(Life.new("moe.new", 1), "log", SOME)

    async with connect(settings, run="moe"):
        await wait_until(lambda: attempts(store, "moe.acked") == [], "the old life is gone")

    assert (attempts(store, "moe.new"), attempts(store, "other.job")) == ([1], [3])


async def test_what_was_acked_goes_and_what_still_runs_stays(fleet: Fleet, store: SharedFolder) -> None:
    done, running = await fleet.add("done", "running")
    fleet.start(play=Play(on_run=keeping))
    records = await fleet.results(2)
    blobs = RunBlobs(RUN, store, fleet.client, fleet.settings)
    await fleet.scripts.ack(RUN, fleet.incarnation, [(records[done].get("entry", ""), "job", done)])

    assert await blobs.delete([("", "job", done), ("", "job", running), ("", "step", "1")]) == 1

    assert (attempts(store, done), attempts(store, running)) == ([], [int(records[running]["ra"])])
    assert await ask(fleet.client, "EXISTS", fleet.keys.job(running))
