"""Deterministic steps as a trainer takes them; that they repeat byte for byte is tested on real processes (`tests/faults`)."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.errors import InvalidRequest
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from pipeline.testing import wait_until
from tests.integration.trainer_client.pump import Pump, half_of_prompts_alike
from tests.integration.trainer_client.rows import rows
from trainer_client import StepRequest, connect

RUN = "repeats"
STEP = StepRequest(task="math", groups=2, n=4, over=2.0, deterministic=True)


class OfPrompt(set[str]):
    """The jobs of one prompt, of whatever draw."""

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self._prefix = f"{RUN}.{prompt}."

    def __contains__(self, job: object) -> bool:
        return str(job).startswith(self._prefix)


async def test_steps_take_the_prompts_in_their_order_whatever_ends_first(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump, client: AsyncClient, keys: Keys
) -> None:
    """Rows of odd number teach nothing. The first prompt of each step is held back until others behind it have closed."""
    pump.rewarder = half_of_prompts_alike
    taken: list[list[str]] = []
    async with connect(settings, run=RUN) as run:
        run.feed(rows(40))
        stream = run.steps(STEP, count=3, timeout_s=20)
        for index in range(3):
            pump.held_back = OfPrompt(f"e0-{4 * index}")
            asked = asyncio.ensure_future(anext(stream))
            await wait_until(lambda: _at_least(client, keys.closed, 3), "groups behind the first prompt have closed")
            assert not asked.done()
            pump.held_back = set()
            step = await asked
            taken.append([group.prompt_id for group in step.groups])
            await step.ack()
        statistics = await run.statistics()

    assert taken == [["e0-0", "e0-2"], ["e0-4", "e0-6"], ["e0-8", "e0-10"]]
    assert statistics.prompts["trained"] == 6


async def test_the_version_changes_only_between_steps(
    settings: QueueSettings, supervisor: Supervisor, pump: Pump, client: AsyncClient, keys: Keys
) -> None:
    async with connect(settings, run=RUN) as run:
        run.feed(rows(30))
        await run.set_policy_version(0)
        pump.hold_all = True
        stream = run.steps(STEP, timeout_s=20)
        asked = asyncio.ensure_future(anext(stream))
        await wait_until(lambda: _at_least(client, keys.flying(RUN), 1), "groups are in flight")

        with pytest.raises(InvalidRequest, match="step 1 is deterministic and being sampled"):
            await run.set_policy_version(1)
        await run.set_policy_version(0)  # the same again changes nothing

        pump.hold_all = False
        step = await asked
        await run.set_policy_version(1)
        await step.ack()
        assert run.policy_version == "1.1"


async def _at_least(client: AsyncClient, key: str, count: int) -> bool:
    return bool(await ask(client, "ZCARD", key) >= count)
