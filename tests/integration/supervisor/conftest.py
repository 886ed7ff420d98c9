from __future__ import annotations

import pytest

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient
from pipeline.scripts import Scripts
from pipeline.scripts.step_calls import StepScripts
from pipeline.supervisor.drain import Drain
from pipeline.supervisor.loading import LedgerReader
from tests.integration.supervisor.fleet import Fleet


@pytest.fixture
async def fleet(client: AsyncClient, keys: Keys, scripts: Scripts) -> Fleet:
    """A run that a trainer has taken."""
    steps, reader = StepScripts(client, keys), LedgerReader(client, keys)
    fleet = Fleet(scripts, steps, Drain(reader, steps, window=256), reader)
    await fleet.connect()
    return fleet
