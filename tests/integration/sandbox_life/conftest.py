"""Folders for a node, and kinds of sandboxes that it has."""

from __future__ import annotations

import os

import pytest

from tests.contract.sandbox.kinds import KINDS, LOCAL_KINDS, Kind


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind_name" in metafunc.fixturenames:
        walled_only = "walled_node" in metafunc.fixturenames
        metafunc.parametrize("kind_name", [name for name in LOCAL_KINDS if KINDS[name].walls or not walled_only], indirect=True)


@pytest.fixture
def kind_name(request: pytest.FixtureRequest) -> str:
    """A kind that works here; one that must (`ROLLSTREAM_REQUIRE_BACKENDS`) and does not is a failure."""
    name = str(request.param)
    why = KINDS[name].why_not()
    if why:
        required = os.environ.get("ROLLSTREAM_REQUIRE_BACKENDS", "").split(",")
        (pytest.fail if name in required else pytest.skip)(f"{name}: {why}")
    return name


@pytest.fixture
def kind(kind_name: str) -> Kind:
    return KINDS[kind_name]
