"""Leaving has two steps: what runs may finish within the grace period; what is left then, or at a second signal, goes back at once and
uncounted. Nothing of a member stays behind: no name, no consumer, nothing pending."""

from __future__ import annotations

import asyncio
import time

import pytest

from pipeline.attempts import End, JobControl
from pipeline.messages import Stage
from pipeline.process import Member
from pipeline.redis_client import ask
from pipeline.settings import QueueSettings
from pipeline.testing import LossyProxy, PrivateServer, wait_until
from tests.integration.pipeline.crew import DONE, Crew, HeldWork, Running

pytestmark = pytest.mark.one_server


async def nothing_is_left_of(crew: Crew, member: Member) -> None:
    """No name, no consumer, no pending entry."""
    assert await crew.audit.hash(crew.keys.worker(member.consumer)) == {}
    for stream in await ask(crew.client, "SMEMBERS", crew.keys.key("streams")):
        infos = await ask(crew.client, "XINFO CONSUMERS", crew.keys.key(stream.decode()), stream.decode().split(":")[1])
        assert member.consumer.encode() not in [info["name"] for info in infos]
    assert await crew.pending() == []


async def is_draining(crew: Crew, member: Running) -> None:
    """Until it has noticed the first signal: its reader waits no more."""
    await wait_until(lambda: member.shutdown.stop.is_set(), "it was told")


async def test_what_runs_may_finish_within_the_grace_period(crew: Crew) -> None:
    await crew.add(5)
    work = HeldWork()
    member = crew.start(Stage.INIT, work, slots=3, grace_s=30.0)
    await wait_until(lambda: len(work.running) == 3, "three jobs run")

    member.shutdown.stop.set()
    asyncio.get_running_loop().call_later(0.2, work.may_end.set)

    assert await member.stop() is True
    assert (len(work.begun), work.interrupted) == (3, [])
    assert {record["out"] for record in await crew.results(3)} == {"ok"}
    assert len(await crew.results()) == 3, "nothing was claimed after the signal"
    await nothing_is_left_of(crew, member.member)


@pytest.mark.slow
async def test_what_does_not_finish_in_time_goes_back_uncounted(crew: Crew) -> None:
    crew.settings = crew.settings.model_copy(update={"lease_s": 60.0})
    jobs = await crew.add(3)
    work = HeldWork()
    member = crew.start(Stage.INIT, work, slots=3, grace_s=0.3)
    await wait_until(lambda: len(work.running) == 3, "three jobs run")

    assert await member.stop() is True

    assert sorted(work.interrupted) == sorted(jobs)
    for job in jobs:
        h = await crew.job(job)
        assert (h["st"], h["att"], h["failed"], h["lost"]) == ("ready", "1", "0", "0")
    await nothing_is_left_of(crew, member.member)
    again = HeldWork()
    crew.start(Stage.INIT, again, node="other")
    await wait_until(lambda: len(again.running) == 3, "another worker has them, long before any lease could run out")
    assert {control.held.attempt for control in again.running.values()} == {2}


@pytest.mark.slow
async def test_a_second_signal_does_not_wait_for_the_grace_period(crew: Crew) -> None:
    (job,) = await crew.add(1)
    work = HeldWork()
    member = crew.start(Stage.INIT, work, grace_s=600.0)
    await wait_until(lambda: work.running, "the job runs")

    assert await member.stop(hurry=True, within_s=5.0) is True

    assert (await crew.job(job))["st"] == "ready"
    await nothing_is_left_of(crew, member.member)


@pytest.mark.slow
async def test_a_second_signal_also_ends_a_drain_that_has_begun(crew: Crew) -> None:
    (job,) = await crew.add(1)
    work = HeldWork()
    member = crew.start(Stage.INIT, work, grace_s=600.0)
    await wait_until(lambda: work.running, "the job runs")
    member.shutdown.stop.set()
    await asyncio.wait([member.task], timeout=1.5)  # longer than one read blocks: the drain is on
    assert not member.task.done()

    member.shutdown.hurry.set()

    assert await member.stop(within_s=5.0) is True
    assert (await crew.job(job))["st"] == "ready"


@pytest.mark.slow
async def test_a_shard_without_work_does_not_cut_the_grace_of_another(quick: QueueSettings, crew: Crew) -> None:
    """A process serves two shards. The one that had nothing to do was drained first and then told everybody to hurry, so the jobs of
    the other were interrupted although they had all the grace in the world."""
    crew.settings = quick.model_copy(update={"shards": 2})
    await crew.connect("run4")
    await crew.add(1, run="run4")
    work = HeldWork()
    member = crew.start(Stage.INIT, work, grace_s=600.0)
    await wait_until(lambda: work.running, "the job runs")

    member.shutdown.stop.set()
    await asyncio.wait([member.task], timeout=2.5)  # the idle shard has left by now

    assert (work.interrupted, member.shutdown.hurry.is_set()) == ([], False)
    work.may_end.set()
    assert await member.stop() is True
    assert {record["out"] for record in await crew.results(1, run="run4")} == {"ok"}


async def test_jobs_that_are_finished_while_it_drains_are_settled_before_it_leaves(crew: Crew) -> None:
    """Ends are sent in batches by a task of their own: it must outlive the last of them."""
    await crew.add(40)
    work = HeldWork()
    member = crew.start(Stage.INIT, work, slots=40, grace_s=600.0)
    await wait_until(lambda: len(work.running) == 40, "all jobs run")

    member.shutdown.stop.set()
    work.may_end.set()

    assert await member.stop() is True
    assert len(await crew.results()) == 40
    await nothing_is_left_of(crew, member.member)


async def test_work_that_cleans_up_when_it_is_interrupted_is_let_finish_that(crew: Crew) -> None:
    """A sandbox is torn down in a `finally`, with awaits in it. The job goes back when that is done, not before: the next attempt must
    not meet the sandbox of this one."""
    (job,) = await crew.add(1)
    states: list[str] = []
    began = asyncio.Event()

    async def work(control: JobControl) -> End:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(3):
                await asyncio.sleep(0.05)
                states.append((await crew.job(job))["st"])
        return DONE

    member = crew.start(Stage.INIT, work, grace_s=0.0)
    await began.wait()

    assert await member.stop() is True
    assert states == ["running"] * 3
    assert (await crew.job(job))["st"] == "ready"


async def test_a_member_that_waits_for_its_name_leaves_when_told(crew: Crew) -> None:
    """Another process of that name is alive: its lock never lapses."""
    first = crew.start(Stage.INIT, HeldWork())
    await crew.has_name(first)
    second = crew.start(Stage.INIT, HeldWork())

    await asyncio.wait([second.task], timeout=0.3)
    assert not second.task.done()

    assert await second.stop(within_s=3.0) is True
    assert (await crew.audit.hash(crew.keys.worker(first.member.consumer)))["boot"] == first.member.boot


@pytest.mark.parametrize("step", ["stop", "hurry"])
async def test_a_member_that_started_without_redis_leaves_when_told(crew: Crew, redis_server: PrivateServer, step: str) -> None:
    """It waited for Redis and heard nothing else, also not SIGTERM: only SIGKILL ended it."""
    with LossyProxy(redis_server.socket) as proxy:
        proxy.begin_outage()
        member = crew.start(Stage.RUN, HeldWork(), url=proxy.url)
        await asyncio.wait([member.task], timeout=0.5)
        assert not member.task.done()

        assert await member.stop(hurry=step == "hurry", within_s=8.0) is True


@pytest.mark.slow
async def test_a_member_that_holds_work_leaves_also_when_redis_does_not_come_back(crew: Crew, redis_server: PrivateServer) -> None:
    """Finished work is held until Redis is back, but not for ever by a process that was told to go twice (or whose parent, and with it
    perhaps Redis, is dead): it leaves the rest to its leases."""
    jobs = await crew.add(2)
    work = HeldWork()
    with LossyProxy(redis_server.socket) as proxy:
        member = crew.start(Stage.INIT, work, url=proxy.url, grace_s=0.5)
        await wait_until(lambda: len(work.running) == 2, "both jobs run")
        proxy.begin_outage()
        started_s = time.monotonic()

        await member.stop(hurry=True, within_s=15.0)

        assert time.monotonic() - started_s < 15.0
    assert {(await crew.job(job))["st"] for job in jobs} == {"running"}
    other = HeldWork()
    crew.start(Stage.INIT, other, node="other")
    await wait_until(lambda: len(other.running) == 2, "their leases ran out, and another has them")


@pytest.mark.slow
async def test_an_outage_while_it_drains_is_waited_for_within_the_grace_period(crew: Crew, redis_server: PrivateServer) -> None:
    """What is finished is worth the wait."""
    await crew.add(1)
    work = HeldWork()
    with LossyProxy(redis_server.socket) as proxy:
        member = crew.start(Stage.INIT, work, url=proxy.url, grace_s=60.0)
        await wait_until(lambda: work.running, "the job runs")
        proxy.begin_outage()
        work.may_end.set()
        member.shutdown.stop.set()
        await asyncio.wait([member.task], timeout=2.0)
        assert not member.task.done()

        proxy.heal()

        assert await member.stop(within_s=15.0) is True
    assert {record["out"] for record in await crew.results(1)} == {"ok"}
