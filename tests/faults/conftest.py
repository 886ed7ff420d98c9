from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ops.child_processes import ChildProcesses
from pipeline.redis_client import AsyncClient
from pipeline.settings import QueueSettings
from tests.faults.company import Company
from tests.faults.math_fleet import MathFleet, math_fleet


@pytest.fixture
async def company(settings: QueueSettings, client: AsyncClient, tmp_path: Path) -> AsyncIterator[Company]:
    """A run that a trainer has taken, and worker processes to come. All of them have ended afterwards."""
    with ChildProcesses(tmp_path / "logs", {}) as children:
        company = Company(settings.model_copy(update={"retry_backoff_s": 0.02}), client, children, tmp_path)
        await company.connect()
        yield company


@pytest.fixture
async def fleet() -> AsyncIterator[MathFleet]:
    async with math_fleet() as fleet:
        yield fleet
