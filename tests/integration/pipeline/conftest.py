from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from tests.integration.pipeline.crew import Crew

LEASE_S = 1.0
"""Short, so that what waits for a lease is not waited for long; no test needs it to be exact."""


@pytest.fixture
def quick(settings: QueueSettings) -> QueueSettings:
    """The test's settings, with a short lease and short pauses."""
    return settings.model_copy(update={"lease_s": LEASE_S, "retry_backoff_s": 0.02, "retry_backoff_max_s": 0.2})


@pytest.fixture
async def crew(quick: QueueSettings, client: AsyncClient) -> AsyncIterator[Crew]:
    """A run that a trainer has taken, and no members yet. What it was given must fit together afterwards."""
    crew = Crew(quick, client)
    await crew.connect()
    yield crew
    await crew.leave()
