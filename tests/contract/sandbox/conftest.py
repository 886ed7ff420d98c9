"""One provider a kind (`kinds.py`). Every test of this folder runs on each kind that works here, or on those of its core.

A test that takes `walled` too runs on those with walls only. `ROLLSTREAM_REQUIRE_BACKENDS` names kinds that must work: one that does
not fails its tests instead of being skipped.

A `sandbox` is the test's own. Files whose tests only use one have its fixture return `room.sandbox`, which they have in turn (`rooms.py`),
and run in one event loop: `pytestmark = pytest.mark.asyncio(loop_scope="module")`.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.sandbox.kinds import KINDS, Kind, required, usable
from tests.contract.sandbox.rooms import Room, Rooms
from workers.sandbox import Sandbox, SandboxOwner, SandboxProvider, SandboxSpec


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        named = required()
        walled_only = "walled" in metafunc.fixturenames
        is_slow = metafunc.definition.get_closest_marker("slow") is not None
        file = metafunc.module.__name__.rpartition(".")[2]
        kinds = {name: kind for name, kind in KINDS.items() if kind.walls or not walled_only}
        chosen = [name for name, kind in kinds.items() if not kind.core or name in named or (file in kind.core and not is_slow)]
        metafunc.parametrize("backend", chosen)


@pytest.fixture
def kind(backend: str) -> Kind:
    return usable(backend)


@pytest.fixture
def walled(kind: Kind) -> Kind:
    return kind


@pytest.fixture
def spec(kind: Kind) -> SandboxSpec:
    return kind.spec


@pytest.fixture
async def provider(kind: Kind, place: Path) -> AsyncIterator[SandboxProvider]:
    async with kind.open(place) as provider:
        yield provider


@pytest.fixture
async def sandbox(provider: SandboxProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    async with await provider.start(spec, an_owner()) as sandbox:
        yield sandbox


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rooms(request: pytest.FixtureRequest) -> AsyncIterator[Rooms]:
    async with Rooms(kernel_stays=getattr(request.module, "KERNEL_STAYS", False)) as rooms:
        yield rooms


@pytest_asyncio.fixture(loop_scope="module")
async def room(backend: str, kind: Kind, rooms: Rooms) -> AsyncIterator[Room]:
    room = await rooms.enter(backend, kind)
    yield room
    await rooms.leave(backend, room)


def an_owner(job_id: str = "", *, attempt: int = 1) -> SandboxOwner:
    return SandboxOwner(job_id=job_id or f"run:{secrets.token_hex(4)}", attempt=attempt, boot_id="boot")
