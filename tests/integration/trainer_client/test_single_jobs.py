"""Single jobs from a trainer's side: submitted once, ended once, fetched when asked for, gone when acked."""

from __future__ import annotations

import asyncio
import re

import numpy as np
import pytest

from pipeline.codec import encode
from pipeline.errors import BrokerMisused, DamagedBody, InvalidRequest, QueueFull
from pipeline.inference_pool import InferencePool, Server
from pipeline.keys import Keys, shard_of
from pipeline.messages import CancelReason, Outcome
from pipeline.redis_client import AsyncClient, ask, redis_now_ms
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.testing import a_trajectory, wait_until
from tests.integration.trainer_client.pump import Pump, pumping, trajectory_of
from trainer_client import BodyMissing, ClientClosed, JobRequest, WaitTimeout, connect
from trainer_client.results import fetch_trajectories

RUN = "solo"


def a_request(**changes: object) -> JobRequest:
    return JobRequest.parse({"task": "math", "prompt": {"question": "2 + 2?"}, **changes})


async def test_a_job_goes_in_and_its_trajectory_and_grade_come_out(settings: QueueSettings, pump: Pump) -> None:
    async with connect(settings, run=RUN) as run:
        job = await run.submit(a_request(id="j-1"))
        result = await job.result(timeout_s=10)
        trajectory, grade = await result.trajectory(), await result.grade()

    expected = trajectory_of(job.id)
    assert (job.id, result.outcome, result.reward) == ("solo.j-1", Outcome.OK, 1.0)
    assert trajectory.answer == expected.answer
    assert np.array_equal(trajectory.segments[0].token_ids, expected.segments[0].token_ids)
    assert np.array_equal(trajectory.segments[0].logprobs, expected.segments[0].logprobs, equal_nan=True)
    assert grade.reward == result.reward


async def test_the_same_request_again_is_the_same_job(settings: QueueSettings, pump: Pump) -> None:
    request = a_request()

    async with connect(settings, run=RUN) as run:
        first = await run.submit(request)
        await first.result(timeout_s=10)
        second = await run.submit(request)
        statistics = await run.statistics()

    assert first.id == second.id
    assert (statistics.accepted, pump.ended) == (1, [first.id])


async def test_many_jobs_of_several_templates_come_back_each_once(settings: QueueSettings, pump: Pump) -> None:
    requests = [a_request(priority=i % 3, prompt={"i": i}) for i in range(100)]

    async with connect(settings, run=RUN) as run:
        jobs = await run.submit(requests)
        results = [result async for result in run.results(jobs, timeout_s=10)]
        statistics = await run.statistics()

    assert [job.id for job in jobs] == [f"solo.{request.id}" for request in requests]
    assert sorted(result.job for result in results) == sorted(job.id for job in jobs)
    assert (statistics.accepted, statistics.outcomes, statistics.in_flight, statistics.waiting) == (100, {"ok": 100}, 0, 0)
    assert (statistics.seen_jobs, statistics.sampled_tokens) == (100, 700)


@pytest.mark.one_server
async def test_one_invalid_request_of_many_refuses_all_and_names_it(settings: QueueSettings, client: AsyncClient, keys: Keys) -> None:
    small = settings.model_copy(update={"max_body_bytes": 2000})

    async with connect(small, run=RUN) as run:
        with pytest.raises(
            InvalidRequest, match=r"requests\[1\]\.prompt: expected at most 2,000 bytes, got .*most of it in 'long'"
        ) as refusal:
            await run.submit([a_request(), a_request(prompt={"question": "q", "long": "x" * 3000})])

    assert refusal.value.field == "requests[1].prompt"
    assert await ask(client, "ZCARD", keys.open_units(RUN)) == 0


async def test_an_acked_result_leaves_nothing_but_a_tombstone(settings: QueueSettings, pump: Pump, client: AsyncClient, keys: Keys) -> None:
    async with connect(settings, run=RUN) as run:
        result = await (await run.submit(a_request(id="gone"))).result(timeout_s=10)
        await result.trajectory()

        await result.ack()
        await result.ack()

        with pytest.raises(InvalidRequest, match="was acked"):
            await run.job("solo.gone").result()
        with pytest.raises(BodyMissing, match="acked"):
            await result.grade()
    left = [key.decode() async for key in client.scan_iter(match="*solo.gone*")]
    assert left == []
    assert await ask(client, "XLEN", keys.results(RUN)) == 0


async def test_an_id_that_an_earlier_process_acked_is_used_up_and_said_so_at_once(settings: QueueSettings, pump: Pump) -> None:
    """Only that process knew. The next one waited for a result that could not come, until its time ran out."""
    async with connect(settings, run=RUN) as run:
        await (await (await run.submit(a_request(id="old"))).result(timeout_s=10)).ack()

    async with connect(settings, run=RUN) as again:
        old, new = await again.submit([a_request(id="old"), a_request(id="new")])
        results = [result.job async for result in again.results([old, new], timeout_s=10)]

        assert results == ["solo.new"]
        with pytest.raises(InvalidRequest, match=r"solo\.old was acked"):
            await old.result(timeout_s=10)
        assert await again.resubmit_unsettled() == 0


async def test_results_that_nobody_acked_come_to_the_next_client(settings: QueueSettings, pump: Pump) -> None:
    async with connect(settings, run=RUN) as run:
        kept, acked = await run.submit([a_request(id="kept"), a_request(id="acked")])
        await kept.result(timeout_s=10)
        await (await acked.result(timeout_s=10)).ack()

    async with connect(settings, run=RUN) as run:
        results = run.results(timeout_s=10)
        again = await anext(results)
        trajectory = await again.trajectory()
        later = await run.submit(a_request(id="later"))
        after = await anext(results)

    assert (again.job, after.job) == (kept.id, later.id)
    assert trajectory.answer == f"answer of {kept.id}"


async def test_a_cancelled_job_gets_a_result_and_has_no_trajectory(settings: QueueSettings) -> None:
    async with connect(settings, run=RUN) as run:
        job = await run.submit(a_request())
        word = await job.cancel()
        result = await job.result(timeout_s=10)

        assert (word, result.outcome, result.reason, result.reward) == ("settled", Outcome.CANCELLED, CancelReason.USER, None)
        with pytest.raises(BodyMissing, match="ended as cancelled"):
            await result.trajectory()
        assert await job.cancel() == "done"
        assert await run.job("solo.nobody").cancel() == "unknown"


@pytest.mark.one_server
async def test_a_cancelled_run_refuses_work_and_gives_out_what_it_has(settings: QueueSettings) -> None:
    async with connect(settings, run=RUN) as run:
        jobs = await run.submit([a_request() for _ in range(5)])

        counts = await run.cancel()

        results = [result async for result in run.results(jobs, timeout_s=10)]
        assert counts["settled"] == 5
        assert {result.outcome for result in results} == {Outcome.CANCELLED}
        with pytest.raises(Exception, match="cancelled"):
            await run.submit(a_request())


@pytest.mark.one_server
async def test_a_damaged_body_is_an_error_of_that_result_only(settings: QueueSettings, pump: Pump, client: AsyncClient, keys: Keys) -> None:
    async with connect(settings, run=RUN) as run:
        jobs = await run.submit([a_request(id="good"), a_request(id="bad")])
        results = {result.job: result async for result in run.results(jobs, timeout_s=10)}
        bad, good = results["solo.bad"], results["solo.good"]
        await ask(client, "SET", bad.trajectory_key, b"\x00\xc1 no msgpack", "KEEPTTL")

        with pytest.raises(DamagedBody) as damage:
            await bad.trajectory()

        assert damage.value.body == b"\x00\xc1 no msgpack"
        assert (await good.trajectory()).answer == "answer of solo.good"
        assert (await bad.grade()).reward == 1.0


@pytest.mark.one_server
async def test_an_entry_that_is_no_record_does_no_harm(settings: QueueSettings, pump: Pump, client: AsyncClient, keys: Keys) -> None:
    for fields in (("kind", "job", "job", "solo.x"), ("noise", b"\xff\xfe"), ("kind", "group", "grp", "solo.y.0", "verdict", "superb")):
        await ask(client, "XADD", keys.results(RUN), "*", *fields)

    async with connect(settings, run=RUN) as run:
        job = await run.submit(a_request())

        assert (await job.result(timeout_s=10)).outcome is Outcome.OK


@pytest.mark.one_server
async def test_a_results_key_of_another_type_ends_the_client_with_that_error(
    settings: QueueSettings, client: AsyncClient, keys: Keys
) -> None:
    await ask(client, "SET", keys.results(RUN), "no stream", "EX", 60)

    async with connect(settings, run=RUN) as run:
        with pytest.raises(BrokerMisused, match="WRONGTYPE"):
            await anext(run.results(timeout_s=10))
        with pytest.raises(BrokerMisused, match="WRONGTYPE"):
            await run.submit(a_request())


async def test_a_wait_that_runs_out_says_that_no_worker_is_alive(settings: QueueSettings) -> None:
    async with connect(settings, run=RUN) as run:
        job = await run.submit(a_request())

        with pytest.raises(WaitTimeout) as timeout:
            await job.result(timeout_s=0.01)

    assert timeout.value.why == (
        "No worker of stage INIT is alive, and 1 job waits there: start one (rollstream worker run --stage init)",
        "The job waits for a worker of stage INIT in s:init",
    )
    assert isinstance(timeout.value, TimeoutError)


async def test_a_wait_that_runs_out_says_who_holds_the_job(settings: QueueSettings, scripts: Scripts) -> None:
    pump = Pump(scripts, hold_all=True)

    async with connect(settings, run=RUN) as run:
        job = await run.submit(a_request())
        while await pump.round():
            pass
        with pytest.raises(WaitTimeout, match=r"at work in stage RUN, attempt 2, held by w1"):
            await job.result(timeout_s=0.01)


async def test_closed_groups_are_told_of_when_nobody_accounts_for_them(settings: QueueSettings, client: AsyncClient, keys: Keys) -> None:
    """A group that had just closed was told to have waited since 1970."""
    now_ms = await redis_now_ms(client)
    async with connect(settings, run=RUN) as run:
        await ask(client, "ZADD", keys.closed, now_ms, "group")
        assert [reason for reason in await run.why_waiting() if "accounted" in reason] == []

        await ask(client, "ZADD", keys.closed, now_ms - 7_000, "group")

        (told,) = [reason for reason in await run.why_waiting() if "accounted" in reason]
        assert re.match(r"Closed groups have not been accounted for ([78]|1\d) s", told)


async def test_a_run_without_a_model_server_is_told_how_to_get_one(settings: QueueSettings, client: AsyncClient, scripts: Scripts) -> None:
    """The first thing that is forgotten: all looks at work, and nothing comes."""
    pump = Pump(scripts, hold_all=True)
    pool = InferencePool(client, settings.namespace, lease_s=1.0)

    async with connect(settings, run=RUN) as run:
        job = await run.submit(a_request())
        while await pump.round():
            pass
        with pytest.raises(WaitTimeout, match=f"No model server is attached to the run: rollstream llm add --run {RUN} URL"):
            await job.result(timeout_s=0.01)

        await pool.attach(RUN, [Server("http://127.0.0.1:1")])
        assert [reason for reason in await run.why_waiting() if "model server" in reason] == []

        pump.hold_all = False
        async with pumping(pump):
            assert (await job.result(timeout_s=10)).outcome is Outcome.OK


@pytest.mark.one_server
async def test_a_full_queue_refuses_at_once_or_is_waited_for(settings: QueueSettings, scripts: Scripts) -> None:
    tight = settings.model_copy(update={"max_waiting": 2, "admit_window": 1})

    async with connect(tight, run=RUN) as run:
        await run.submit([a_request() for _ in range(3)][:1])
        await run.submit([a_request(), a_request()])
        with pytest.raises(QueueFull, match="holds its most of 2 waiting jobs") as refusal:
            await run.submit(a_request())
        assert refusal.value.retry_after_s > 0

        async with pumping(Pump(scripts)):
            late = await run.submit(a_request(), wait_s=10)
            assert (await late.result(timeout_s=10)).outcome is Outcome.OK


@pytest.mark.one_server
async def test_calls_after_the_end_say_so_and_waits_end_with_it(settings: QueueSettings) -> None:
    async with connect(settings, run=RUN) as run:
        job = await run.submit(a_request())
        results = run.results()

    for call in (job.result(), run.submit(a_request()), anext(results), run.statistics(), job.cancel()):
        with pytest.raises(ClientClosed, match="'solo' is closed"):
            await call


@pytest.mark.one_server
async def test_an_error_in_the_block_comes_out_as_it_is(settings: QueueSettings) -> None:
    async def train() -> None:
        async with connect(settings, run=RUN) as run:
            await run.submit(a_request())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await train()


@pytest.mark.one_server
async def test_results_are_kept_until_acked_however_short_they_would_live(settings: QueueSettings, pump: Pump, client: AsyncClient) -> None:
    short = settings.model_copy(update={"run_ttl_s": 2.0})

    async with connect(short, run=RUN) as run:
        result = await (await run.submit(a_request())).result(timeout_s=10)
        await ask(client, "PEXPIRE", result.trajectory_key, 1200)

        async def lives_on() -> bool:
            return bool(await ask(client, "PTTL", result.trajectory_key) > 1200)

        await wait_until(lives_on, "the trajectory's time to live was renewed")
        assert (await result.trajectory()).answer == f"answer of {result.job}"


@pytest.mark.one_server
async def test_two_hundred_submit_and_wait_at_once(settings: QueueSettings, pump: Pump) -> None:
    async with connect(settings, run=RUN) as run:

        async def roll_out(i: int) -> str:
            result = await (await run.submit(a_request(prompt={"i": i}))).result(timeout_s=20)
            return (await result.trajectory()).answer

        answers = await asyncio.gather(*(roll_out(i) for i in range(200)))

    assert len(set(answers)) == 200


@pytest.mark.one_server
async def test_large_bodies_come_in_several_calls(settings: QueueSettings, pump: Pump, client: AsyncClient) -> None:
    async with connect(settings, run=RUN) as run:
        results = [result async for result in run.results(await run.submit([a_request() for _ in range(5)]), timeout_s=10)]
        for i, result in enumerate(results):
            await ask(client, "SET", result.trajectory_key, encode(a_trajectory(answer=str(i) * 5_000_000)), "EX", 60)
        before = await _calls_of_mget(client)

        await fetch_trajectories(results, run._bodies)

        assert [(await result.trajectory()).answer[:2] for result in results] == [str(i) * 2 for i in range(5)]
        assert await _calls_of_mget(client) - before == 5


async def _calls_of_mget(client: AsyncClient) -> int:
    commands = await ask(client, "INFO", "commandstats")
    return int(commands.get("cmdstat_mget", {"calls": 0})["calls"])


@pytest.mark.one_server
async def test_a_run_lives_on_its_shard_and_every_process_agrees_on_their_number(settings: QueueSettings, client: AsyncClient) -> None:
    sharded = settings.model_copy(update={"shards": 4})
    shard = shard_of(RUN, 4)
    keys = Keys.of_shard(settings.namespace, shard)

    async with connect(sharded, run=RUN) as run, pumping(Pump(Scripts(client, keys))):
        result = await (await run.submit(a_request())).result(timeout_s=10)

    assert shard != 0
    assert result.trajectory_key.startswith(keys.tag)
    with pytest.raises(BrokerMisused, match="has 4 shards, this process is set to 1"):
        await connect(settings, run=RUN).__aenter__()
