"""The task `code` on a node service whose sandboxes have walls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.sandbox.kinds import KINDS, usable
from workers.handlers.code.handler import CodeHandler
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
        assert await remote.owned() == [], "a grader left a sandbox"


@pytest.fixture
def code() -> CodeHandler:
    return CodeHandler()
