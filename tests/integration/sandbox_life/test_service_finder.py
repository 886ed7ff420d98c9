"""How a worker comes to its node's service: it starts one where none answers, again where that was killed, and takes it along."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ops.sandbox_service import LINGER_S, ServiceFinder, ServiceNotStarted
from pipeline.failpoints import FAILPOINT, FAILPOINT_ONCE
from pipeline.testing.wait import wait_until
from workers.sandbox.local.identity import identify
from workers.sandbox.service.server import SOCKET_NAME
from workers.sandbox.service.serving import LOCK_NAME, lock_folder
from workers.sandbox.service.settings import SandboxSettings

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def of_node(place: Path, monkeypatch: pytest.MonkeyPatch) -> SandboxSettings:
    """Of a service that comes up fast."""
    monkeypatch.setenv("ROLLSTREAM_SANDBOX_BACKEND", "process")
    monkeypatch.setenv("ROLLSTREAM_STATE_DIR", str(place / "state"))
    return SandboxSettings(run_dir=place / "run", scratch_dir=place / "s")


def service_of(of_node: SandboxSettings) -> int:
    """0 = there was none."""
    lock = of_node.run / LOCK_NAME
    return int(lock.read_text()) if lock.exists() else 0


@pytest.fixture
async def find(of_node: SandboxSettings) -> AsyncIterator[ServiceFinder]:
    find = ServiceFinder(of_node, None, "here")
    yield find
    await leave(find, of_node)


async def leave(find: ServiceFinder, of_node: SandboxSettings) -> None:
    """Ends the service that there is."""
    if pid := service_of(of_node):
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # its exit code is the finder's to read
    find.close()


async def test_one_that_was_killed_after_it_had_answered_is_followed_by_another(find: ServiceFinder, of_node: SandboxSettings) -> None:
    """Its exit code is that of a service that could not start, and the worker took it for that: it ended, with all its jobs."""
    await find(asyncio.Event())
    first = service_of(of_node)

    os.kill(first, signal.SIGKILL)
    await wait_until(lambda: identify(first) is None, "it has ended")
    await find(asyncio.Event())

    assert service_of(of_node) != first


async def test_one_that_was_killed_as_it_started_is_followed_by_another(
    find: ServiceFinder, of_node: SandboxSettings, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies as it tries its backend, before anybody can have heard of it."""
    monkeypatch.setenv(FAILPOINT, "node_named")
    monkeypatch.setenv(FAILPOINT_ONCE, str(place / "once"))

    await find(asyncio.Event())

    assert (place / "once").exists()
    assert identify(service_of(of_node)) is not None
    assert not [
        path.name for folder in (of_node.scratch, of_node.run) for path in folder.iterdir() if path.name.lstrip(".").startswith("p")
    ]


async def test_one_that_is_slow_to_start_is_waited_for(of_node: SandboxSettings) -> None:
    """Half a minute is nothing on a loaded node with a hundred sandboxes to tidy up: its workers ended, one after the other."""
    find = ServiceFinder(of_node, None, "here", start_s=0.0)

    await find(asyncio.Event())

    await leave(find, of_node)


async def test_none_is_started_beside_one_that_has_the_lock(of_node: SandboxSettings, place: Path) -> None:
    """It tidies up before it listens. Each worker of the node started another one a second meanwhile, which found the lock taken and ended:
    on a busy node they were what it waited for."""
    find = ServiceFinder(of_node, None, "here", start_s=0.0)
    of_node.run.mkdir(0o700)
    tidies_up = lock_folder(of_node.run)
    with capture_logs() as said:
        finding = asyncio.create_task(find(asyncio.Event()))
        await wait_until(lambda: any(line["event"] == "waiting_for_node_service" for line in said), "it waits")

    assert not (place / "state").exists()  # of the log of one that was started

    tidies_up.close()
    await finding
    await leave(find, of_node)


async def test_one_that_cannot_start_is_said_with_its_last_words(find: ServiceFinder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLSTREAM_SANDBOX_BACKEND", "nonesuch")

    with pytest.raises(ServiceNotStarted, match="nonesuch"):
        await find(asyncio.Event())


async def test_where_none_may_be_started_who_can_do_without_waits_so_long_and_hears_when_one_comes(of_node: SandboxSettings) -> None:
    """Graders of a node whose launcher starts the service, and that has no backend: they waited for it for ever, and nobody graded."""
    find = ServiceFinder(of_node.model_copy(update={"autostart": False}), None, "here")

    with pytest.raises(ServiceNotStarted, match="no sandbox service within 0 s"):
        await find(asyncio.Event(), patience_s=0.0)

    coming = asyncio.create_task(find.comes())
    starter = ServiceFinder(of_node, None, "here")
    await starter(asyncio.Event())
    async with asyncio.timeout(20):
        assert await coming == "a sandbox service answers"
    await leave(starter, of_node)


async def test_one_whose_worker_ended_before_it_could_connect_goes_with_it(of_node: SandboxSettings) -> None:
    """It waited for that worker for a minute, as it waits for one that is slow."""
    command = [sys.executable, "-m", "ops.cli", "sandbox", "serve", "--while-used"]
    command += ["--run-dir", str(of_node.run), "--scratch-dir", str(of_node.scratch)]
    null = asyncio.subprocess.DEVNULL
    service = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, stdout=null, stderr=null)
    await wait_until((of_node.run / SOCKET_NAME).exists, "it serves", timeout_s=60)
    assert service.returncode is None
    assert service.stdin is not None

    service.stdin.close()  # as the system does for who is killed

    async with asyncio.timeout(LINGER_S + 10):
        assert await service.wait() == 0
