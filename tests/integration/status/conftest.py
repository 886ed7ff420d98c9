from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from tests.integration.pipeline.crew import Crew


@pytest.fixture
async def crew(settings: QueueSettings, client: AsyncClient) -> AsyncIterator[Crew]:
    """A connected run and room for members."""
    crew = Crew(settings.model_copy(update={"lease_s": 2.0}), client)
    await crew.connect()
    yield crew
    await crew.leave()
