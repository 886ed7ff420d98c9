"""What no client can put right after a lost window ends it with a sentence, and nobody waits on."""

from __future__ import annotations

import pytest

from pipeline.errors import RunLost
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from tests.integration.trainer_client.pump import Pump
from tests.integration.trainer_client.rows import rows
from tests.integration.trainer_client.test_behind import all_of, go_back, names_of
from trainer_client import JobRequest, StepRequest, connect
from trainer_client.handed import REMEMBERED_STEPS

pytestmark = pytest.mark.one_server
RUN = "lost"
ONE_GROUP = StepRequest(task="math", groups=1, n=2, ahead=8)


async def test_whoever_waits_for_a_job_of_a_run_that_is_gone_is_told(settings: QueueSettings, client: AsyncClient, keys: Keys) -> None:
    """Somebody emptied the server, and no connection broke. The trainer's sign of life heard of it; who waited for a result waited for
    good, since nobody sends a job again to a run that is not there."""
    short = settings.model_copy(update={"run_ttl_s": 2.0})
    async with connect(short, run=RUN) as run:
        job = await run.submit(JobRequest(task="math", prompt={"question": "?"}, id="a"))
        await client.delete(*await names_of(client, keys))

        with pytest.raises(RunLost, match="resume="):
            await job.result(timeout_s=30)


async def test_two_trainers_that_took_the_same_number_do_not_both_go_on(
    settings: QueueSettings, client: AsyncClient, keys: Keys, scripts: Scripts
) -> None:
    """Redis lost that the first took it, and the second was there before the first had asked again: the number fences nobody."""
    before = await all_of(client, keys)
    async with connect(settings, run=RUN) as first:
        job = await first.submit(JobRequest(task="math", prompt={"question": "?"}, id="a"))
        await go_back(client, keys, before)
        assert await scripts.connect_run(RUN, nonce="second", ttl_s=60.0) == first.incarnation

        with pytest.raises(RunLost):
            await job.result(timeout_s=30)


@pytest.mark.slow
async def test_more_lost_steps_than_a_client_remembers_end_it(
    settings: QueueSettings, client: AsyncClient, keys: Keys, supervisor: Supervisor, pump: Pump
) -> None:
    """As when a copy of an hour ago is laid back under a trainer that lives: the prompts of the steps before those that it remembers were
    drawn again. From its state it goes on, and trains each once."""
    count = REMEMBERED_STEPS + 6
    trained: list[str] = []
    async with connect(settings, run=RUN) as run:
        feed = run.feed(rows(count + 4), reserve=count + 5)
        await feed.ended.wait()
        before = await all_of(client, keys)
        steps = run.steps(ONE_GROUP, timeout_s=40)
        for _ in range(count):
            step = await anext(steps)
            trained += [group.prompt_id for group in step.groups]
            await step.ack()
        await go_back(client, keys, before)
        with pytest.raises(RunLost, match="does not remember"):
            _ = [step async for step in steps]
        state = run.state_dict()

    async with connect(settings, run=RUN, resume=state) as run:
        run.feed(rows(count + 4), reserve=count + 5)
        async for step in run.steps(ONE_GROUP, timeout_s=40):
            trained += [group.prompt_id for group in step.groups]
            await step.ack()
    assert sorted(trained) == sorted(f"e0-{row}" for row in range(count + 4))
