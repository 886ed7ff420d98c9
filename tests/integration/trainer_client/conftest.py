from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from tests.integration.trainer_client.pump import Pump, pumping


@pytest.fixture
async def pump(scripts: Scripts) -> AsyncIterator[Pump]:
    """Workers that carry every job through."""
    async with pumping(Pump(scripts)) as pump:
        yield pump


@pytest.fixture
async def supervisor(settings: QueueSettings) -> AsyncIterator[Supervisor]:
    """A supervisor at work."""
    supervisor = Supervisor(settings, name="supervisor-1", period_s=0.2)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run(stop), name="supervisor")
        yield supervisor
        stop.set()
