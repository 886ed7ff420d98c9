"""Sandboxes of each backend with walls that works here, by the kinds of the contract (`tests/contract/sandbox/kinds.py`)."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.sandbox.kinds import KINDS, LOCAL_KINDS, Kind, usable
from workers.sandbox import Sandbox, SandboxOwner, SandboxProvider


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "walled_name" in metafunc.fixturenames:
        metafunc.parametrize("walled_name", [name for name in LOCAL_KINDS if KINDS[name].walls])


@pytest.fixture
def kind(walled_name: str) -> Kind:
    return usable(walled_name)


@pytest.fixture
async def provider(kind: Kind, place: Path) -> AsyncIterator[SandboxProvider]:
    async with kind.open(place) as provider:
        yield provider


@pytest.fixture
async def sandbox(provider: SandboxProvider, kind: Kind) -> AsyncIterator[Sandbox]:
    async with await provider.start(kind.spec, an_owner()) as sandbox:
        yield sandbox


@pytest.fixture
async def neighbour(provider: SandboxProvider, kind: Kind) -> AsyncIterator[Sandbox]:
    """Another sandbox of the same worker."""
    async with await provider.start(kind.spec, an_owner()) as sandbox:
        yield sandbox


def an_owner() -> SandboxOwner:
    return SandboxOwner(job_id=f"run:{secrets.token_hex(4)}", attempt=1, boot_id="boot")
