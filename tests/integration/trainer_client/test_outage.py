"""Redis goes away, comes back, forgets: the client waits, says so, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from pipeline.errors import BrokerUnreachable
from pipeline.keys import Keys
from pipeline.messages import Outcome
from pipeline.redis_client import ask, command_client
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import LossyProxy, PrivateServer, wait_until
from tests.integration.trainer_client.pump import Pump, pumping
from trainer_client import JobRequest, StepRequest, WaitTimeout, connect

RUN = "stormy"
SPEC = StepRequest(task="math", groups=2, n=4, ahead=1)


def a_request(i: int) -> JobRequest:
    return JobRequest(task="math", prompt={"i": i}, id=f"j{i}")


def settings_of(server: PrivateServer) -> QueueSettings:
    return QueueSettings(redis_url=server.url, namespace="outage")


@pytest.mark.slow
@pytest.mark.one_server
async def test_a_killed_server_is_waited_for_and_nothing_is_lost(make_server: Callable[..., PrivateServer]) -> None:
    server = make_server(persistence="always")
    settings = settings_of(server)
    commands = command_client(settings)
    scripts = Scripts(commands, Keys.of_shard(settings.namespace, 0))

    async with connect(settings, run=RUN) as run, pumping(Pump(scripts)):
        jobs = await run.submit([a_request(i) for i in range(40)])
        results = run.results(jobs, timeout_s=30)
        seen = [await anext(results)]
        await asyncio.to_thread(server.kill)
        with pytest.raises(WaitTimeout, match="Waiting for Redis since"):
            await run.job("stormy.nobody").result(timeout_s=0.5)
        submitting = asyncio.create_task(run.submit(a_request(99)))
        await asyncio.to_thread(server.start)

        late = await submitting
        seen += [result async for result in results]

        assert sorted(result.job for result in seen) == sorted(job.id for job in jobs)
        assert (await late.result(timeout_s=20)).outcome is Outcome.OK
        assert await ask(commands, "XLEN", scripts.keys.results(RUN)) == 41
    await commands.aclose()


@pytest.mark.one_server
async def test_a_client_without_patience_says_that_redis_is_away(make_server: Callable[..., PrivateServer]) -> None:
    server = make_server()

    async with connect(settings_of(server), run=RUN, patience_s=0.2) as run:
        await asyncio.to_thread(server.kill)
        with pytest.raises(BrokerUnreachable):
            await run.submit(a_request(1))

    with pytest.raises(BrokerUnreachable):
        await connect(settings_of(server), run=RUN, patience_s=0.2).__aenter__()


async def test_what_redis_forgot_is_sent_again(settings: QueueSettings, scripts: Scripts, keys: Keys) -> None:
    """As after a crash with `appendfsync everysec`: jobs and prompts that were accepted are not there any more."""
    client = scripts.run_script.client

    async with connect(settings, run=RUN) as run:
        jobs = await run.submit([a_request(i) for i in range(4)])
        feed = run.feed([{"i": i} for i in range(6)])
        await wait_until(feed.ended.is_set, "all was fed")
        for forgotten in (keys.job(jobs[1].id), keys.job(jobs[3].id), keys.prompt_marks(RUN), keys.reserve(RUN), keys.prompt_bodies(RUN)):
            await ask(client, "DEL", forgotten)
        await ask(client, "ZREM", keys.queue(RUN), jobs[1].id, jobs[3].id)

        lost = await run.resubmit_unsettled()

        assert lost == 2 + 6
        assert await run.resubmit_unsettled() == 0
        async with pumping(Pump(scripts)) as pump:
            results = [result async for result in run.results(jobs, timeout_s=20)]
        assert sorted(result.job for result in results) == sorted(job.id for job in jobs)
        assert sorted(pump.ended) == sorted(job.id for job in jobs)


async def test_a_second_end_of_a_job_that_redis_forgot_is_not_a_second_result(
    settings: QueueSettings, scripts: Scripts, keys: Keys
) -> None:
    client = scripts.run_script.client

    async with connect(settings, run=RUN) as run, pumping(Pump(scripts)):
        reader = run.results(timeout_s=20)
        job = await run.submit(a_request(1))
        first = await anext(reader)
        record = await ask(client, "XRANGE", keys.results(RUN), first.record.entry, first.record.entry)

        doubled = await ask(client, "XADD", keys.results(RUN), "*", *[word for pair in record[0][1].items() for word in pair])
        second = await run.submit(a_request(2))

        assert (await anext(reader)).job == second.id
        await first.ack()
        await (await second.result()).ack()
        tripled = await ask(client, "XADD", keys.results(RUN), "*", *[word for pair in record[0][1].items() for word in pair])

        async def is_empty() -> bool:
            return int(await ask(client, "XLEN", keys.results(RUN))) == 0

        assert doubled < tripled
        await wait_until(is_empty, "records of a job that was acked are dropped")
        assert job.id == first.job


@pytest.mark.one_server
async def test_a_tenth_of_the_trainers_replies_is_lost_and_every_prompt_is_trained_once(
    redis_server: PrivateServer, settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    with LossyProxy(redis_server.socket, cut_share=0.1, seed=11) as proxy:
        async with connect(settings.model_copy(update={"redis_url": proxy.url}), run=RUN) as run:
            run.feed([{"i": i} for i in range(12)])
            trained = []
            async for step in run.steps(SPEC, timeout_s=30):
                trained += [group.prompt_id for group in step.groups]
                await step.ack()

    assert sorted(trained) == sorted(f"e0-{i}" for i in range(12))
