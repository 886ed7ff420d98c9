"""Sandboxes that nobody enters, and the two ends of an execution server by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.sandbox.kinds import Kind, usable
from tests.integration.sandbox_inside.servers import Above, FalseServer
from workers.sandbox import SandboxGone, SandboxOwner
from workers.sandbox.inside import InsideLauncher
from workers.sandbox.local import LocalSandbox, LocalSandboxes


@pytest.fixture
def kind() -> Kind:
    return usable("bubblewrap-inside")


@pytest.fixture
async def provider(kind: Kind, place: Path) -> AsyncIterator[LocalSandboxes]:
    made = kind.open(place)
    assert isinstance(made, LocalSandboxes)
    async with made as provider:
        yield provider


@pytest.fixture
async def sandbox(provider: LocalSandboxes, kind: Kind) -> AsyncIterator[LocalSandbox]:
    sandbox = await provider.start(kind.spec, SandboxOwner(job_id="job", attempt=1, boot_id="boot"))
    yield sandbox
    with contextlib.suppress(SandboxGone):
        await sandbox.kill()


@pytest.fixture
async def above() -> Above:
    return Above(asyncio.get_running_loop().create_future())


@pytest.fixture
async def launched(above: Above) -> AsyncIterator[tuple[InsideLauncher, FalseServer]]:
    """A launcher, and in place of its server whatever the test sends."""
    ours, theirs = socket.socketpair()
    launcher = InsideLauncher("sandbox", above, ours)
    with FalseServer(theirs) as server:
        yield launcher, server
        launcher.connection.close("the test is over")


@pytest.fixture
def launcher(launched: tuple[InsideLauncher, FalseServer]) -> InsideLauncher:
    return launched[0]


@pytest.fixture
def server(launched: tuple[InsideLauncher, FalseServer]) -> FalseServer:
    return launched[1]
