"""Sandboxes without walls and with those that are cheapest to build, by the kinds of the contract (`tests/contract/sandbox/kinds.py`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.contract.sandbox.kinds import Kind, usable
from workers.sandbox import SandboxProvider, SandboxSpec


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    named = any("kind_name" in str(mark.args[:1]) for mark in metafunc.definition.iter_markers("parametrize"))
    if "kind_name" in metafunc.fixturenames and not named:
        metafunc.parametrize("kind_name", ["process", "bubblewrap"])


@pytest.fixture
def kind(kind_name: str) -> Kind:
    return usable(kind_name)


@pytest.fixture
def spec(kind: Kind) -> SandboxSpec:
    return kind.spec


@pytest.fixture
async def provider(kind: Kind, place: Path) -> AsyncIterator[SandboxProvider]:
    async with kind.open(place) as provider:
        yield provider
