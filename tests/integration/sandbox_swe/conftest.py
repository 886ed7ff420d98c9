"""A run with real workers of the three stages, whose sandboxes have walls, and a model that plays a script for each repository."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from tests.contract.sandbox.kinds import KINDS, usable
from tests.integration.stages.fleet import Fleet
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.service import RemoteSandboxes, served_here

KIND = "bubblewrap"


@pytest.fixture
async def sandboxes(place: Path) -> AsyncIterator[RemoteSandboxes]:
    usable(KIND)
    local = KINDS[KIND].open(place)
    assert isinstance(local, LocalSandboxes)
    async with served_here(local, place / "run") as remote:
        yield remote


@pytest.fixture
async def fleet(settings: QueueSettings, client: AsyncClient, tmp_path: Path) -> AsyncIterator[Fleet]:
    fleet = Fleet(settings, client, tmp_path)
    await fleet.connect()
    yield fleet
    alive = fleet.all_alive()
    await fleet.leave()
    assert alive, "a worker ended by itself"
