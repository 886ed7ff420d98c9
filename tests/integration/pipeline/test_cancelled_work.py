"""Promise 4, as a running job sees it: its work is interrupted, wherever it is and whatever was lost on the way, and it ends as
cancelled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine

import pytest

from pipeline.attempts import End, HandedOff, JobControl
from pipeline.errors import JobCancelled, LeaseLost
from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.testing import LossyProxy, ManualWorker, PrivateServer, a_group, jobs_of, wait_until
from tests.integration.pipeline.crew import BODY, DONE, Crew, HeldWork

pytestmark = pytest.mark.one_server


@pytest.mark.parametrize("kind", ["job", "group", "run"])
async def test_running_work_is_interrupted_and_ends_as_cancelled(crew: Crew, kind: str) -> None:
    crew.settings = crew.settings.model_copy(update={"lease_s": 60.0})  # a renewal would come too late to be the one that tells
    group = a_group(members=3)
    await crew.accept(group)
    work = HeldWork()
    crew.start(Stage.INIT, work)
    await wait_until(lambda: len(work.running) == 3, "all members run")
    targets = {"job": jobs_of(group)[:2], "group": [group.id], "run": ["run1"]}[kind]

    if kind == "job":
        await crew.scripts.cancel("job", targets, "user")
    elif kind == "group":
        await crew.scripts.cancel("group", targets, "user")
    else:
        await crew.scripts.cancel("run", targets, "user")

    results = await crew.results(2 if kind == "job" else 3)
    assert {(record["out"], record["why"], record["rew"]) for record in results} == {("cancelled", "user", "")}
    assert sorted(work.interrupted) == sorted(record["job"] for record in results)
    work.may_end.set()
    await crew.results(3)
    assert await crew.audit.all_ended("run1", [group]) == []


async def test_a_cancel_whose_message_is_lost_comes_with_the_next_renewal(crew: Crew) -> None:
    """The stream of cancels is trimmed, and a reader may have been away. The mark in the job stays."""
    (job,) = await crew.add(1)
    work = HeldWork()
    crew.start(Stage.INIT, work)
    await wait_until(lambda: work.running, "the job runs")

    await ask(crew.client, "HSET", crew.keys.job(job), "cx", "user")  # what a cancel leaves behind when nobody reads its message

    (record,) = await crew.results(1)
    assert (record["out"], record["why"], work.interrupted) == ("cancelled", "user", [job])


async def test_a_reader_of_cancels_that_was_cut_off_asks_at_once(crew: Crew, redis_server: PrivateServer) -> None:
    """It cannot know what it missed, so every lease is renewed without waiting for its time, and the renewal brings the mark."""
    crew.settings = crew.settings.model_copy(update={"lease_s": 60.0})
    (job,) = await crew.add(1)
    work = HeldWork()
    with LossyProxy(redis_server.socket) as proxy:
        member = crew.start(Stage.INIT, work, url=proxy.url)
        await wait_until(lambda: work.running, "the job runs")
        proxy.begin_outage()
        await crew.scripts.cancel("job", [job], "redundant")
        await ask(crew.client, "DEL", crew.keys.cancel)
        proxy.heal()

        (record,) = await crew.results(1)

        assert (record["out"], record["why"], work.interrupted) == ("cancelled", "redundant", [job])
        await member.stop(hurry=True)


async def test_a_cancel_between_begin_and_the_first_step_of_the_work(crew: Crew) -> None:
    """A task that is cancelled before its first step runs no line: no `except` and no `finally` of ours saw it, the slot and the job
    were held for ever. The cancel is given from the very call that makes the task, as the cancel stream's reader may on its next
    turn."""
    (job,) = await crew.add(1)
    loop = asyncio.get_running_loop()
    served: list[asyncio.Task[object]] = []

    def cancelling(loop: asyncio.AbstractEventLoop, coro: Coroutine[object, object, object], **options: object) -> asyncio.Task[object]:
        task: asyncio.Task[object] = asyncio.Task(coro, loop=loop, **options)  # type: ignore[arg-type]
        if getattr(coro, "__qualname__", "") == "Consumer._serve":
            served.append(task)
            if len(served) == 1:
                task.cancel()
        return task

    loop.set_task_factory(cancelling)  # type: ignore[arg-type]
    try:
        work = HeldWork()
        crew.start(Stage.INIT, work, slots=1)
        await wait_until(lambda: work.running, "the job was handed back and began again: its slot was free")
    finally:
        loop.set_task_factory(None)

    assert (await crew.job(job))["att"] == "2"
    assert (work.begun, (await crew.job(job))["failed"]) == ([job], "0")


async def test_a_cancel_that_the_journal_answers_ends_the_work_there(crew: Crew) -> None:
    """Nothing was heard of the cancel but from the script that keeps a turn: the next call must not start."""
    crew.settings = crew.settings.model_copy(update={"lease_s": 60.0})
    (job,) = await crew.add(1)
    met: list[str] = []

    async def work(control: JobControl) -> End:
        await control.journal(0, BODY)
        await ask(crew.client, "HSET", crew.keys.job(job), "cx", "user")
        try:
            await control.journal(1, BODY)
        except JobCancelled as error:
            met.append(error.reason)
            raise
        return HandedOff(BODY)

    crew.start(Stage.INIT, work)

    (record,) = await crew.results(1)
    assert (record["out"], record["why"], met) == ("cancelled", "user", ["user"])


@pytest.mark.slow
async def test_a_cancel_that_comes_while_a_turn_is_on_its_way_interrupts_the_wait(crew: Crew, redis_server: PrivateServer) -> None:
    crew.settings = crew.settings.model_copy(update={"lease_s": 60.0})
    (job,) = await crew.add(1)
    journalled = asyncio.Event()

    async def work(control: JobControl) -> End:
        journalled.set()
        await control.journal(0, BODY)
        raise AssertionError("the reply was held until after the cancel")

    with LossyProxy(redis_server.socket) as proxy:
        trap = proxy.hold_reply(containing=BODY)  # of all requests only the journal has it
        member = crew.start(Stage.INIT, work, url=proxy.url)
        await journalled.wait()
        await trap.sprung()

        await crew.scripts.cancel("job", [job], "user")
        await wait_until(lambda: not running_tasks(job), "the work has ended, the reply still on its way")
        trap.release()

        (record,) = await crew.results(1)
        assert (record["out"], record["why"]) == ("cancelled", "user")
        await member.stop(hurry=True)


def running_tasks(job: str) -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if job in task.get_name()]


@pytest.mark.parametrize("stage", [Stage.INIT, Stage.EVAL])
async def test_a_job_that_is_cancelled_while_it_finishes_ends_once_and_as_cancelled(crew: Crew, stage: Stage) -> None:
    """The mark is there before the work's end is sent: a hand-off is refused and becomes a settlement, a settlement is settled as
    cancelled."""
    (job,) = await crew.add(1)
    work = HeldWork(end=lambda control: HandedOff(BODY) if stage is Stage.INIT else DONE)
    crew.start_stages(but=[stage])
    crew.start(stage, work)
    await wait_until(lambda: work.running, "the last part runs")

    await ask(crew.client, "HSET", crew.keys.job(job), "cx", "user")
    work.may_end.set()

    (record,) = await crew.results(1)
    assert (record["out"], record["why"], record["rew"]) == ("cancelled", "user", "")
    assert await crew.audit.all_ended("run1", crew.units) == []


@pytest.mark.slow
async def test_a_run_with_thousands_of_waiting_jobs_is_cancelled_whole(crew: Crew) -> None:
    """In calls of some dozens, each short: what waits, is ready, delayed and runs ends as cancelled, each once."""
    groups = [a_group(prompt=f"e0-i{number}", members=16) for number in range(160)]
    for batch in itertools.batched(groups, 8) if hasattr(itertools, "batched") else zip(*[iter(groups)] * 8, strict=True):
        await crew.accept(*batch)
    work = HeldWork()
    crew.start(Stage.INIT, work, slots=16)
    await wait_until(lambda: len(work.running) == 16, "some run")

    await crew.scripts.cancel("run", ["run1"], "user")

    results = await crew.results(160 * 16)
    assert len(results) == 160 * 16
    assert {(record["out"], record["why"]) for record in results} == {("cancelled", "user")}
    assert len({record["job"] for record in results}) == 160 * 16
    assert len(work.begun) == 16
    assert await crew.audit.all_ended("run1", groups) == []


@pytest.mark.slow
async def test_a_cancel_of_a_run_does_not_reach_the_jobs_of_the_trainer_that_came_after(crew: Crew, redis_server: PrivateServer) -> None:
    """A trainer cancels its run and dies; the next one takes the run and feeds it. A worker that is slow to read the cancel has begun
    one of the new jobs by then, and must not take the old word for it."""
    crew.settings = crew.settings.model_copy(update={"lease_s": 60.0})
    work = HeldWork()
    cancels = b"$5\r\nXREAD\r\n"
    with LossyProxy(redis_server.socket) as proxy:
        member = crew.start(Stage.INIT, work, url=proxy.url)
        await crew.add(1)
        await wait_until(lambda: len(work.begun) == 1, "it serves, and reads cancels")
        trap = proxy.hold_reply(containing=cancels)
        await crew.scripts.cancel("run", ["run1"], "user")
        await trap.sprung()
        await crew.connect(nonce="the next trainer")
        (job,) = await crew.add(1, start=1)
        await wait_until(lambda: job in work.running, "a job of the next trainer runs")

        trap.release()
        await wait_until(lambda: work.interrupted, "the cancel was read: the old job has ended")
        read_on = proxy.cut_reply(containing=cancels)
        await read_on.sprung()

        assert job in work.running
        work.may_end.set()
        assert {record["job"]: record["out"] for record in await crew.results(2)}[job] == "ok"
        await member.stop(hurry=True)


@pytest.mark.slow
async def test_a_lost_verdict_interrupts_once_however_often_it_is_heard(crew: Crew) -> None:
    """Each renewal says again that the job is another's, and each interrupted the clean-up of the work anew: a sandbox was left half
    torn down."""
    (job,) = await crew.add(1)
    cleaned: list[str] = []

    async def work(control: JobControl) -> End:
        try:
            control.progress(60)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(1.2)  # several renewals long
            cleaned.append(job)
            raise
        return DONE

    member = crew.start(Stage.INIT, work, slots=1)
    await crew.in_state("running", 1)
    await ask(crew.client, "HSET", crew.keys.job(job), "own", "somebody#else")

    await wait_until(lambda: cleaned, "the clean-up ran to its end")

    await ask(crew.client, "HSET", crew.keys.job(job), "st", "done")
    assert not member.task.done()


async def test_a_gate_says_why_nothing_may_start(crew: Crew) -> None:
    (cancelled, lost) = await crew.add(2)
    controls: dict[str, JobControl] = {}

    async def work(control: JobControl) -> End:
        controls[control.held.job] = control
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            control.gate()  # as work that goes on after it was told would find
        return DONE

    crew.start(Stage.INIT, work)
    await wait_until(lambda: len(controls) == 2, "both run")
    await crew.scripts.cancel("job", [cancelled], "user")
    await ask(crew.client, "HSET", crew.keys.job(lost), "own", "somebody#else")

    await wait_until(lambda: controls[cancelled].cancel_reason and controls[lost].lease_lost, "both were told")

    with pytest.raises(JobCancelled, match="user"):
        controls[cancelled].gate()
    with pytest.raises(LeaseLost):
        controls[lost].gate()
    await ask(crew.client, "HSET", crew.keys.job(lost), "st", "done")


async def test_jobs_of_two_streams_whose_entries_have_one_id_are_two_jobs(crew: Crew) -> None:
    """An id is unique in its stream only, and a lane and the common stream may get entries in the same millisecond. What a worker held was
    kept by the id alone: the second job took the place of the first, which heard no cancel and had no lease from then on."""
    await crew.scripts.beat_node("n1", "e1", live_ms=60_000, reads_lane=True)
    in_lane, in_common = await crew.add(2)
    init = ManualWorker(crew.scripts, Stage.INIT)
    held = {job.job: job for job in await init.take()}
    await init.hand_off(held[in_lane], node="n1", epoch="e1")
    await init.hand_off(held[in_common])
    lane = crew.keys.stage_stream(Stage.RUN, node="n1")
    (before,) = await crew.audit.entries(lane)
    entry = (await crew.job(in_common))["eid"]
    fields = [word for pair in before.items() if pair[0] != "entry" for word in pair]
    if before["entry"] != entry:  # else they met by themselves
        await ask(crew.client, "XADD", lane, entry, *fields)
        await ask(crew.client, "XDEL", lane, before["entry"])
        await ask(crew.client, "HSET", crew.keys.job(in_lane), "eid", entry)
    work = HeldWork()
    crew.start(Stage.RUN, work)
    await wait_until(lambda: len(work.running) == 2, "both run")

    await crew.scripts.cancel("job", [in_lane, in_common], "user")

    assert {record["job"] for record in await crew.results(2)} == {in_lane, in_common}
    assert await crew.audit.all_ended("run1", crew.units) == []
