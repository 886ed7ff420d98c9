from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pipeline.inference_pool import InferencePool
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from tests.integration.weight_update.engines import Engines
from trainer_client import Run, connect

LEASE_S = 2.0


@pytest.fixture
def settings(settings: QueueSettings) -> QueueSettings:
    """With leases that a test can see the end of."""
    return settings.model_copy(update={"lease_s": LEASE_S})


@pytest.fixture
async def engines() -> AsyncIterator[Engines]:
    with TemporaryDirectory(prefix="rsw-") as folder:
        engines = Engines(Path(folder))
        yield engines
        await engines.leave()


@pytest.fixture
async def pool(client: AsyncClient, settings: QueueSettings) -> InferencePool:
    return InferencePool(client, settings.namespace, lease_s=LEASE_S)


@pytest.fixture
async def run(settings: QueueSettings) -> AsyncIterator[Run]:
    """A trainer that has taken its run."""
    async with connect(settings, run="run1") as run:
        yield run
