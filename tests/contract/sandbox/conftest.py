"""One provider a kind (`kinds.py`). Every test of this folder runs on each kind that works here, or on those of its core.

A test that takes `walled` too runs on those with walls only. `ROLLSTREAM_REQUIRE_BACKENDS` names kinds that must work: one that does
not fails its tests instead of being skipped.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.contract.sandbox.kinds import KINDS, Kind, required, usable
from workers.sandbox import Sandbox, SandboxOwner, SandboxProvider, SandboxSpec
from workers.sandbox.local.folder import remove_tree


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
def place() -> Iterator[Path]:
    """A folder with a short path: sockets live below it."""
    path = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))
    yield path
    remove_tree(path)
    assert not path.exists()


@pytest.fixture
async def provider(kind: Kind, place: Path) -> AsyncIterator[SandboxProvider]:
    async with kind.open(place) as provider:
        yield provider


@pytest.fixture
async def sandbox(provider: SandboxProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    async with await provider.start(spec, an_owner()) as sandbox:
        yield sandbox


def an_owner(job_id: str = "", *, attempt: int = 1) -> SandboxOwner:
    return SandboxOwner(job_id=job_id or f"run:{secrets.token_hex(4)}", attempt=attempt, boot_id="boot")
