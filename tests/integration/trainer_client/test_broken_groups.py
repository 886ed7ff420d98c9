"""Infrastructure that breaks every group: the trainer hears why, and no data set is used up for it."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.step_request import StepRequest
from pipeline.supervisor.ledger import BROKEN_IN_A_ROW
from pipeline.supervisor.loop import Supervisor
from pipeline.supervisor.replenishment import LOWEST_RATE
from pipeline.testing import wait_until
from tests.integration.trainer_client.pump import Pump, alternating
from tests.integration.trainer_client.rows import rows
from trainer_client import GroupsBroken, WaitTimeout, connect

pytestmark = pytest.mark.one_server
REQUEST = StepRequest(task="demo", groups=6, n=2)


async def test_a_trainer_whose_first_groups_all_break_hears_why_and_keeps_its_prompts(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump, client: AsyncClient, keys: Keys
) -> None:
    """A task that no worker has: every job fails at once. Without a bound a data set of any size is dead in minutes."""
    pump.rewarder = lambda job: None
    async with connect(settings, run="r") as run:
        run.feed(rows(200), reserve=200)
        with pytest.raises(GroupsBroken, match=r"infrastructure broke every member of its first 8 groups: .*rollstream job show r[.]e0"):
            async for _ in run.steps(REQUEST):
                pass
        with pytest.raises(WaitTimeout, match="one is tried every 15 s"):
            async for _ in run.steps(REQUEST, timeout_s=0.5):
                pass
        head = {name.decode(): value.decode() for name, value in (await ask(client, "HGETALL", keys.run("r"))).items()}
        in_flight = REQUEST.over * REQUEST.groups / LOWEST_RATE  # the most that is wanted where hardly any group is informative
        assert int(head["groups.launched"]) < BROKEN_IN_A_ROW + in_flight
        assert "prompts.dead" not in head
        assert head["short"] == "broken"
    pump.rewarder = alternating
    async with connect(settings, run="r") as run:  # mended, and started again: at once
        run.feed(rows(200), reserve=200)
        step = await anext(run.steps(REQUEST, timeout_s=20))
        assert len(step.groups) == 6


async def test_an_outage_after_a_first_step_is_waited_for(settings: QueueSettings, supervisor: Supervisor, pump: Pump) -> None:
    """A trainer that worked for days does not die of an hour in which every sandbox fails."""
    async with connect(settings, run="r") as run:
        run.feed(rows(200), reserve=200)
        await (await anext(run.steps(REQUEST, timeout_s=20))).ack()
        pump.rewarder = lambda job: None

        async def train() -> None:
            async for step in run.steps(StepRequest(task="demo", groups=60, n=2)):
                await step.ack()

        training = asyncio.create_task(train())

        async def is_said() -> bool:
            return any(sentence.startswith("Infrastructure broke the last ") for sentence in await run.why_waiting())

        await wait_until(is_said, "it is said why nothing comes", timeout_s=30)
        assert not training.done()
        training.cancel()


async def test_prompts_that_end_before_a_group_came_through_are_no_quiet_end(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump
) -> None:
    """A data set of one row that nothing can read: its steps end, with the reason, and not as if all were well."""
    pump.rewarder = lambda job: None
    async with connect(settings, run="r") as run:
        run.feed(rows(1))
        with pytest.raises(GroupsBroken, match="its first 3 groups"):
            async for _ in run.steps(REQUEST, timeout_s=20):
                pass
