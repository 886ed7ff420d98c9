"""Providers of each backend with walls that works here, made as a test wants them; and a neighbour to see that others go on."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.contract.sandbox.kinds import OneImage, program_of, usable
from workers.sandbox import SandboxOwner
from workers.sandbox.apptainer import ApptainerBackend
from workers.sandbox.bubblewrap import BubblewrapBackend
from workers.sandbox.limits import Cgroups, find_cgroups
from workers.sandbox.local import Backend, LocalSandboxes
from workers.sandbox.network import NetworkRules

WALLED = ("bubblewrap", "apptainer")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "walled_name" in metafunc.fixturenames:
        metafunc.parametrize("walled_name", WALLED)


class OpenProvider(Protocol):
    async def __call__(self, *, cgroups: Callable[[], Cgroups] = ..., network_allow: Sequence[str] = ()) -> LocalSandboxes: ...


@pytest.fixture
async def open_provider(walled_name: str, place: Path) -> AsyncIterator[OpenProvider]:
    usable(walled_name)
    async with AsyncExitStack() as stack:

        async def open_one(*, cgroups: Callable[[], Cgroups] = find_cgroups, network_allow: Sequence[str] = ()) -> LocalSandboxes:
            backend = walled(walled_name, NetworkRules.parse(network_allow) if network_allow else None)
            sandboxes = LocalSandboxes(
                backend, scratch_dir=place / "s", run_dir=place / "r", node="here", images=OneImage(), cgroups=cgroups
            )
            return await stack.enter_async_context(sandboxes)

        yield open_one


def walled(name: str, network: NetworkRules | None) -> Backend:
    program = Path(program_of(name)[0])
    return BubblewrapBackend(program, network=network) if name == "bubblewrap" else ApptainerBackend(program, network=network)


def an_owner() -> SandboxOwner:
    return SandboxOwner(job_id=f"run:{secrets.token_hex(4)}", attempt=1, boot_id="boot")
