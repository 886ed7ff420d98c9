from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipeline.settings import QueueSettings
from tests.integration.gateway.service import Service, gateway, model, workers


@pytest.fixture
def queue(settings: QueueSettings) -> QueueSettings:
    """The test's queue, with leases that end soon."""
    return settings.model_copy(update={"lease_s": 2.0, "retry_backoff_s": 0.02, "retry_backoff_max_s": 0.1})


@pytest.fixture
async def service(queue: QueueSettings, tmp_path: Path) -> AsyncIterator[Service]:
    """A gateway, and no workers."""
    async with gateway(queue, tmp_path) as service:
        yield service


@pytest.fixture
async def fleet(queue: QueueSettings, tmp_path: Path) -> AsyncIterator[str]:
    """Workers and a model; its address."""
    async with model(tmp_path) as server, workers(queue, tmp_path):
        yield server.url
