"""Worker processes with a sandbox of each local kind, to be killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.sandbox.kinds import LOCAL_KINDS, Kind, usable
from workers.sandbox import SandboxHandle
from workers.sandbox.local.identity import ProcessIdentity, identify

PROGRAM = Path(__file__).with_name("attached_worker.py")
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedWorker:
    """A process that has a sandbox, and what runs in it."""

    process: asyncio.subprocess.Process
    handle: SandboxHandle
    inside: tuple[ProcessIdentity, ...]

    def kill(self) -> None:
        self.process.kill()


StartWorker = Callable[..., Awaitable[AttachedWorker]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("backend", LOCAL_KINDS)


@pytest.fixture
def kind(backend: str) -> Kind:
    return usable(backend)


@pytest.fixture
async def start_worker(place: Path, kind: Kind, backend: str) -> AsyncIterator[StartWorker]:
    """Starts worker processes; what is left of them is ended after the test."""
    started: list[asyncio.subprocess.Process] = []
    known: list[ProcessIdentity] = []

    async def start(job: str = "job", *, attempt: int = 1, handle: SandboxHandle | None = None) -> AttachedWorker:
        arguments = [backend, str(place), job, str(attempt)]
        arguments += [json.dumps(handle.to_map())] if handle else []
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(PROGRAM), *arguments, stdout=asyncio.subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        started.append(process)
        assert process.stdout is not None
        async for line in process.stdout:
            if line.startswith(b"{"):
                told = json.loads(line)
                inside = tuple(found for pid in told["pids"] if (found := identify(pid)))
                assert len(inside) == len(told["pids"])
                known.extend(inside)
                return AttachedWorker(process=process, handle=SandboxHandle.from_map(told["handle"]), inside=inside)
        raise AssertionError("the worker ended before its sandbox ran")

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.wait()
    for left in known:
        if identify(left.pid) == left:
            os.kill(left.pid, signal.SIGKILL)
