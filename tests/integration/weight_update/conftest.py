from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pipeline.inference_pool import InferencePool
from pipeline.messages import Stage
from pipeline.process import Shutdown
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from tests.integration.weight_update.engines import Engines
from trainer_client import Run, connect
from workers.settings import WorkerSettings
from workers.worker import serve

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


@pytest.fixture
async def workers(settings: QueueSettings, tmp_path: Path) -> AsyncIterator[None]:
    """A worker of each stage in this process."""
    shutdown = Shutdown()

    def work(stage: Stage) -> asyncio.Task[int]:
        worker = WorkerSettings(stage=stage, node="n1", slots=64, grace_s=1.0, scratch_dir=tmp_path / "n1", adaptive=False)
        return asyncio.create_task(serve(settings, worker, shutdown), name=stage.value)

    tasks = [work(stage) for stage in Stage]
    yield
    assert not any(task.done() for task in tasks), "a worker ended by itself"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
