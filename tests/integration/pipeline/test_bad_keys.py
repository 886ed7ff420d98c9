"""Keys of another type, streams that are gone, ends that nobody can say: a clear error or a dead letter with the reason. No worker dies of
it, and no neighbour is hurt."""

from __future__ import annotations

import asyncio
import math
from typing import cast

import pytest

from pipeline.attempts import End, GivenUp, HandedOff, JobControl, Settled
from pipeline.errors import BrokerMisused
from pipeline.messages import Outcome, Settlement, Stage
from pipeline.redis_client import ask
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import ManualWorker, a_group, jobs_of, wait_until
from tests.integration.pipeline.crew import BODY, DONE, Crew, HeldWork, ends, passes

pytestmark = pytest.mark.one_server


@pytest.mark.parametrize("stage", list(Stage))
async def test_a_worker_whose_stream_is_something_else_says_so_and_does_not_start(crew: Crew, stage: Stage) -> None:
    """It ended in a group of nested exceptions, which no exit code and no person can read."""
    stream = crew.keys.stage_stream(stage)
    await ask(crew.client, "SET", stream, "mine", "PX", 60_000)
    member = crew.start(stage, passes)

    with pytest.raises(BrokerMisused, match="is not a stream: something else wrote that key") as raised:
        async with asyncio.timeout(10):
            await member.task

    assert stream in str(raised.value)


async def test_a_stream_that_is_written_over_later_is_waited_for(crew: Crew) -> None:
    """A worker that ended would take down what it runs; one that looped would take a core."""
    await crew.add(1)
    work = HeldWork()
    member = crew.start(Stage.INIT, work)
    await wait_until(lambda: work.running, "a job runs")
    stream = crew.keys.stage_stream(Stage.INIT)
    await ask(crew.client, "SET", stream, "mine")
    before = await refused_reads(crew)
    await wait_until(lambda: reads_more_than(crew, before), "the worker has met it")
    assert not member.task.done()

    await ask(crew.client, "DEL", stream)
    await crew.add(1, start=1)

    await wait_until(lambda: len(work.begun) > 1, "it claims again", timeout_s=20)
    assert await refused_reads(crew) - before < 30
    work.may_end.set()
    await crew.results(2)


async def refused_reads(crew: Crew) -> int:
    """Reads of stage streams that the server refused so far."""
    return int((await ask(crew.client, "INFO", "commandstats")).get("cmdstat_xreadgroup", {}).get("failed_calls", 0))


async def reads_more_than(crew: Crew, number: int) -> bool:
    return await refused_reads(crew) > number


async def test_a_job_whose_hash_is_something_else_ends_alone(crew: Crew) -> None:
    group = a_group(members=3)
    await crew.accept(group)
    broken = jobs_of(group)[1]
    await ask(crew.client, "DEL", crew.keys.job(broken))
    await ask(crew.client, "SET", crew.keys.job(broken), "no hash", "PX", 60_000)

    crew.start_stages()

    results = {record["job"]: record for record in await crew.results(3)}
    assert {job: results[job]["out"] for job in jobs_of(group)} == {
        jobs_of(group)[0]: "ok",
        broken: "infra_failure",
        jobs_of(group)[2]: "ok",
    }
    assert (await crew.audit.hash(crew.keys.group(group.id)))["st"] == "closed"


async def test_a_run_by_a_name_that_is_none_stops_no_janitor(crew: Crew) -> None:
    """Its name could not be read for the line a minute from which rates are told: that ended whoever did the rounds."""
    await ask(crew.client, "ZADD", crew.keys.runs, 1, b"b\xffd")
    await ask(crew.client, "HSET", crew.keys.run("odd"), "out.ok", "many")
    await ask(crew.client, "ZADD", crew.keys.runs, 1, "odd")
    crew.settings = crew.settings.model_copy(update={"lease_s": 0.4})
    crew.start_stages()

    await crew.add(2)

    await crew.results(2)
    await wait_until(lambda: ask(crew.client, "LLEN", crew.keys.samples), "a line was kept")
    assert not [member for member in crew.members if member.task.done()]
    await ask(crew.client, "DEL", crew.keys.run("odd"))


@pytest.mark.parametrize("key", ["members", "group"])
async def test_a_group_whose_key_is_something_else_hurts_only_its_own_jobs(crew: Crew, key: str) -> None:
    """Its members cannot be counted: they have a record each, or are dead letters. The worker and everybody else's jobs go on."""
    group = a_group(members=2)
    await crew.accept(group)
    name = crew.keys.members(group.id) if key == "members" else crew.keys.group(group.id)
    await ask(crew.client, "DEL", name)
    await ask(crew.client, "SET", name, "no hash", "PX", 60_000)
    others = await crew.add(6, start=10)

    crew.start_stages()

    async def others_done() -> bool:
        return {record["job"] for record in await crew.audit.results("run1")} >= set(others)

    await wait_until(others_done, "the neighbours have ended")
    outcomes = {record["job"]: record["out"] for record in await crew.audit.results("run1")}
    assert {outcomes[job] for job in others} == {"ok"}
    assert not any(member.task.done() for member in crew.members)

    async def told() -> bool:
        records = {record["job"] for record in await crew.audit.results("run1")}
        dead = {row["job"] for row in await crew.audit.entries(crew.keys.dead) if "WRONGTYPE" in row["why"]}
        return records | dead >= set(jobs_of(group))

    await wait_until(told, "its own members have a record, or are dead letters that say why")
    await wait_until(lambda: nothing_pending(crew), "and no worker holds them any more")


async def nothing_pending(crew: Crew) -> bool:
    return await crew.pending() == []


async def test_results_that_cannot_be_written_are_dead_letters_and_the_worker_goes_on(crew: Crew) -> None:
    jobs = await crew.add(2)
    await ask(crew.client, "SET", crew.keys.results("run1"), "no stream", "PX", 60_000)
    member = crew.start(Stage.INIT, ends)

    async def told() -> bool:
        return {row["job"] for row in await crew.audit.entries(crew.keys.dead)} == set(jobs)

    await wait_until(told, "both are told to the people who look at dead letters")
    assert not member.task.done()
    await ask(crew.client, "DEL", crew.keys.results("run1"))
    (later,) = await crew.add(1, start=5)
    await wait_until(lambda: has_result(crew, later), "what comes later ends as it should")


async def has_result(crew: Crew, job: str) -> bool:
    return job in {record["job"] for record in await crew.audit.results("run1")}


async def test_a_journal_that_redis_refuses_fails_the_attempt_with_the_reason(crew: Crew) -> None:
    """It was taken for a lost lease: the work was dropped without a word and the job waited for the end of its lease."""
    (job,) = await crew.add(1)

    async def journals(control: JobControl) -> End:
        if control.begun.failed:
            return DONE
        await ask(crew.client, "SET", crew.keys.body(job, control.held.attempt, "turns"), "no list", "PX", 60_000)
        await control.journal(0, BODY)
        raise AssertionError("the journal was refused")

    crew.start(Stage.INIT, journals)

    (record,) = await crew.results(1)
    h = await crew.job(job)
    assert (record["out"], h["failed"], h["lost"]) == ("ok", "1", "0")
    assert "WRONGTYPE" in h["err"]


async def test_a_turn_above_the_bound_is_not_sent(quick: QueueSettings, crew: Crew) -> None:
    """It went to Redis as it was: a megabyte bound let a gigabyte through, if only it was a turn."""
    crew.settings = quick.model_copy(update={"max_body_bytes": 2048})
    (job,) = await crew.add(1)

    async def journals(control: JobControl) -> End:
        await control.journal(0, bytes(4096))
        return DONE

    crew.start(Stage.INIT, journals)

    (record,) = await crew.results(1)
    assert (record["job"], record["out"]) == (job, "infra_failure")
    assert "4,096 bytes, the bound is 2,048" in record["why"]


NO_TEXT = cast(str, None)
BAD_ENDS: dict[str, End] = {
    "reason that is no text": Settled(Settlement(outcome=Outcome.OK, reason=NO_TEXT, reward=1.0)),
    "stop that is no text": Settled(Settlement(outcome=Outcome.OK, reward=1.0, stop=NO_TEXT)),
    "reward that is no number": Settled(Settlement(outcome=Outcome.OK, reward=cast(float, "much"))),
    "component that is no number": Settled(Settlement(outcome=Outcome.OK, reward=1.0, components={"score": cast(float, "much")})),
    "outcome that is none": Settled(Settlement(outcome=cast(Outcome, "fine"), reward=1.0)),
    "body that is none": HandedOff(cast(bytes, [1, 2])),
    "why that is no text": GivenUp("failed", NO_TEXT),
    "nothing": cast(End, None),
    "something else": cast(End, "done"),
}


@pytest.mark.parametrize("bad", list(BAD_ENDS))
async def test_an_end_that_cannot_be_said_ends_its_job_and_not_the_worker(crew: Crew, bad: str) -> None:
    """A hook of a handler gave None as the reason. The loop that sends the ends of all jobs died of it, and with it the worker and all
    it held."""
    jobs = await crew.add(4)

    async def work(control: JobControl) -> End:
        return BAD_ENDS[bad] if control.held.job == jobs[1] else DONE

    member = crew.start(Stage.INIT, work, slots=4)

    outcomes = {record["job"]: record for record in await crew.results(4)}
    assert [outcomes[job]["out"] for job in jobs] == ["ok", "infra_failure", "ok", "ok"]
    assert outcomes[jobs[1]]["why"]
    assert not member.task.done()


@pytest.mark.parametrize("reward", [math.nan, math.inf])
async def test_a_reward_that_is_no_finite_number_is_never_a_result(crew: Crew, reward: float) -> None:
    """Promise 7, held where all stages meet and not only by the grader."""
    await crew.add(1)

    async def work(control: JobControl) -> End:
        return Settled(Settlement(outcome=Outcome.OK, reward=reward))

    crew.start(Stage.INIT, work)

    (record,) = await crew.results(1)
    assert (record["out"], record["rew"]) == ("infra_failure", "")


async def test_a_pending_list_with_a_broken_job_does_not_keep_its_worker_from_starting(crew: Crew) -> None:
    """The successor of a killed worker puts back what that one held. A job there whose group is something else was refused by the script,
    and the worker ended before it had begun; so did each of its successors."""
    group = a_group(members=1)
    await crew.accept(group)
    healthy = await crew.add(2, start=10)
    killed = ManualWorker(crew.scripts, Stage.INIT, "init-n1-0")
    assert len(await killed.take()) == 3
    await ask(crew.client, "DEL", crew.keys.worker("init-n1-0"), crew.keys.group(group.id))
    await ask(crew.client, "HSET", crew.keys.job(jobs_of(group)[0]), "lost", 99)
    await ask(crew.client, "SET", crew.keys.group(group.id), "no hash", "PX", 60_000)

    member = crew.start(Stage.INIT, ends)

    async def others_done() -> bool:
        return {record["job"] for record in await crew.audit.results("run1")} >= set(healthy)

    await wait_until(others_done, "the successor serves the others")
    await wait_until(lambda: nothing_pending(crew), "nobody holds the broken one")
    assert not member.task.done()


@pytest.mark.slow
@pytest.mark.parametrize("field", ["lost", "ml", "failed"])
async def test_a_broken_job_does_not_keep_the_janitor_from_the_others(crew: Crew, field: str) -> None:
    """Jobs are looked at in the order of their entries: the first one's damage was met in every round, and those after it were never
    recovered."""
    jobs = await crew.add(3)
    assert len(await ManualWorker(crew.scripts, Stage.INIT, "killed").take()) == 3
    await ask(crew.client, "HSET", crew.keys.job(jobs[0]), field, "many")

    member = crew.start(Stage.INIT, ends)

    outcomes = {record["job"]: record["out"] for record in await crew.results(3, timeout_s=20)}
    # a count of losses is needed to count one more; one of failures only to begin it again
    assert [outcomes[job] for job in jobs] == ["infra_failure", "ok", "ok"]
    assert not member.task.done()


async def test_a_job_whose_hash_holds_nonsense_ends_alone(crew: Crew) -> None:
    """A count that is no number made `begin` answer something that could not be read, and the worker ended with what it held."""
    jobs = await crew.add(3)
    await ask(crew.client, "HSET", crew.keys.job(jobs[1]), "failed", "often", "draw", "many")

    member = crew.start(Stage.INIT, ends)

    outcomes = {record["job"]: record["out"] for record in await crew.results(3)}
    assert [outcomes[job] for job in jobs] == ["ok", "infra_failure", "ok"]
    assert not member.task.done()


async def test_a_supervisor_whose_stream_is_written_over_goes_on_by_the_clock(crew: Crew) -> None:
    """Its events are only wake-ups. It ended, and with it the steps of all runs."""
    stop = asyncio.Event()
    task = asyncio.create_task(Supervisor(crew.settings, name="s1", period_s=0.05).run(stop))
    try:

        async def has_group() -> bool:
            return bool(await ask(crew.client, "TYPE", crew.keys.reward) == b"stream")

        await wait_until(has_group, "it listens")
        await ask(crew.client, "SET", crew.keys.reward, "mine", "PX", 60_000)
        group = a_group(members=1)
        await crew.accept(group)
        crew.start(Stage.INIT, ends)

        async def accounted() -> bool:
            return bool(await crew.audit.results("run1")) and not await ask(crew.client, "EXISTS", crew.keys.closed)

        await wait_until(accounted, "it accounts for what closes")
        await ask(crew.client, "DEL", crew.keys.reward)
        await wait_until(has_group, "and listens again")
        assert not task.done()
    finally:
        stop.set()
        await task


async def test_a_supervisor_that_finds_no_stream_there_says_so(crew: Crew) -> None:
    await ask(crew.client, "SET", crew.keys.reward, "mine", "PX", 60_000)

    with pytest.raises(BrokerMisused, match="s:reward is not a stream: something else wrote that key"):
        await Supervisor(crew.settings, name="s1").run(asyncio.Event())
