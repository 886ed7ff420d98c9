"""One provider a backend. Every test of this folder runs on each backend that works here.

`ROLLSTREAM_REQUIRE_BACKENDS` names backends that must be among them: one that is missing fails the run instead of being left out.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from workers.sandbox import Isolation, Sandbox, SandboxOwner, SandboxProvider, SandboxSpec
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.process import ProcessBackend

REQUIRE_VARIABLE = "ROLLSTREAM_REQUIRE_BACKENDS"


def process_sandboxes(folder: Path) -> SandboxProvider:
    return LocalSandboxes(ProcessBackend(), scratch_dir=folder / "scratch", run_dir=folder / "run", node="here")


BACKENDS: dict[str, Callable[[Path], SandboxProvider]] = {"process": process_sandboxes}

SPEC = SandboxSpec(isolation=Isolation.NONE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        missing = set(filter(None, os.environ.get(REQUIRE_VARIABLE, "").split(","))) - BACKENDS.keys()
        if missing:
            raise pytest.UsageError(f"{REQUIRE_VARIABLE} asks for {', '.join(sorted(missing))}, which is not among the backends")
        metafunc.parametrize("backend", BACKENDS)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short path: sockets live below it."""
    path = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def provider(backend: str, place: Path) -> AsyncIterator[SandboxProvider]:
    async with BACKENDS[backend](place) as provider:
        yield provider


@pytest.fixture
async def sandbox(provider: SandboxProvider) -> AsyncIterator[Sandbox]:
    async with await provider.start(SPEC, an_owner()) as sandbox:
        yield sandbox


def an_owner(job_id: str = "", *, attempt: int = 1) -> SandboxOwner:
    return SandboxOwner(job_id=job_id or f"run:{secrets.token_hex(4)}", attempt=attempt, boot_id="boot")
