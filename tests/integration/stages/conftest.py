from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from tests.integration.stages.fleet import Fleet


@pytest.fixture
async def fleet(settings: QueueSettings, client: AsyncClient, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A run that a trainer has taken, and no workers yet. No worker may have ended by itself afterwards."""
    quick = settings.model_copy(update={"lease_s": 1.0, "retry_backoff_s": 0.02, "retry_backoff_max_s": 0.1})
    fleet = Fleet(quick, client, tmp_path)
    await fleet.connect()
    yield fleet
    alive = fleet.all_alive()
    await fleet.leave()
    assert alive, "a worker ended by itself"
