from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipeline.blobs import SharedFolder
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from tests.integration.stages.fleet import Fleet


@pytest.fixture
def store(settings: QueueSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedFolder:
    """The folder that workers and trainers of this test share, as their settings name it."""
    monkeypatch.setenv("ROLLSTREAM_BLOBS_DIR", str(tmp_path / "blobs"))
    monkeypatch.setenv("ROLLSTREAM_BLOBS_MIN_FREE_BYTES", "0")
    return SharedFolder(tmp_path / "blobs", settings.namespace, min_free_bytes=0)


@pytest.fixture
async def fleet(settings: QueueSettings, client: AsyncClient, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A run that a trainer has taken, and no workers yet."""
    quick = settings.model_copy(update={"lease_s": 1.0, "retry_backoff_s": 0.02, "retry_backoff_max_s": 0.1})
    fleet = Fleet(quick, client, tmp_path)
    await fleet.connect()
    yield fleet
    await fleet.leave()


@pytest.fixture
async def supervisor(settings: QueueSettings) -> AsyncIterator[Supervisor]:
    """A supervisor at work."""
    supervisor = Supervisor(settings, name="supervisor-1", period_s=0.2)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.run(stop), name="supervisor")
        yield supervisor
        stop.set()
