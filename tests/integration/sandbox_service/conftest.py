"""A node of bare processes behind its socket, in this process; and folders for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.sandbox_life.nodes import settings
from tests.integration.sandbox_service.nodes import node_of
from workers.sandbox.service import RemoteSandboxes, SandboxServer, serving_here
from workers.sandbox.service.peer import Patience


@pytest.fixture
def patience() -> Patience:
    """How long the service waits for its peers; a test that waits for its end has less of it."""
    return Patience()


@pytest.fixture
async def server(place: Path, patience: Patience) -> AsyncIterator[SandboxServer]:
    async with serving_here(node_of(place), place / "run", settings=settings(), patience=patience) as server:
        yield server


@pytest.fixture
async def remote(server: SandboxServer, place: Path) -> AsyncIterator[RemoteSandboxes]:
    async with RemoteSandboxes(place / "run", boot="boot") as remote:
        yield remote
