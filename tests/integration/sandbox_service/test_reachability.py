"""Whoever removes or replaces the socket of a running service: standing connections do not notice, and new ones find it again.

Machines tidy up `/tmp` by age, and people by hand. The service lived on where nobody reached it, and with its locks no other could start.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pipeline.testing.wait import wait_until
from tests.integration.sandbox_life.nodes import an_owner, settings
from tests.integration.sandbox_service.nodes import PLAIN, GatedProvider, node_of
from tests.integration.sandbox_service.test_drain import a_service
from workers.sandbox import Probe
from workers.sandbox.service import RemoteSandboxes, SandboxServer, ServiceNotThere, serving_here
from workers.sandbox.service.server import SOCKET_NAME, TOKEN_NAME
from workers.sandbox.service.serving import AlreadyServed, serve_sandboxes
from workers.sandbox.service.settings import SandboxSettings

NEVER_S = 3600.0


@asynccontextmanager
async def a_server(place: Path, look_s: float) -> AsyncIterator[SandboxServer]:
    async with serving_here(node_of(place), place / "run", settings=settings(), look_s=look_s) as server:
        yield server


def removed(run: Path) -> None:
    (run / SOCKET_NAME).unlink()


def replaced_by_a_file(run: Path) -> None:
    (run / SOCKET_NAME).unlink()
    (run / SOCKET_NAME).write_text("")


def replaced_by_a_dead_socket(run: Path) -> None:
    (run / SOCKET_NAME).unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(run / SOCKET_NAME))


def token_removed(run: Path) -> None:
    (run / TOKEN_NAME).unlink()


def token_replaced(run: Path) -> None:
    (run / TOKEN_NAME).write_text("0" * 64)


CHANGES = [removed, replaced_by_a_file, replaced_by_a_dead_socket, token_removed, token_replaced]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_a_worker_is_told_that_nobody_answers_and_attachments_go_on(place: Path, change: Callable[[Path], None]) -> None:
    async with a_server(place, NEVER_S), RemoteSandboxes(place / "run") as remote:
        sandbox = await remote.start(PLAIN, an_owner())

        change(place / "run")

        with pytest.raises(ServiceNotThere):
            async with RemoteSandboxes(place / "run"):
                pass
        assert (await sandbox.exec("echo hi", timeout_s=10)).stdout == b"hi\n"
        assert (await remote.probe()).works
        await sandbox.stop()


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_the_service_puts_them_back(place: Path, change: Callable[[Path], None]) -> None:
    async with a_server(place, 0.05) as server, RemoteSandboxes(place / "run") as remote:
        sandbox = await remote.start(PLAIN, an_owner())
        change(place / "run")

        await wait_until(lambda: server.can_be_found, "they are back")

        async with RemoteSandboxes(place / "run") as other:
            assert [view.sandbox_id for view in await other.views()] == [sandbox.handle.sandbox_id]
        assert (place / "run" / TOKEN_NAME).stat().st_mode & 0o777 == 0o600
        assert (await sandbox.exec("echo hi", timeout_s=10)).stdout == b"hi\n"
        await sandbox.stop()


async def test_a_service_that_ends_removes_no_socket_of_another(place: Path) -> None:
    async with a_server(place, NEVER_S):
        replaced_by_a_dead_socket(place / "run")
        theirs = (place / "run" / SOCKET_NAME).lstat().st_ino

    assert (place / "run" / SOCKET_NAME).lstat().st_ino == theirs


async def another(place: Path, *, run: str, scratch: str) -> None:
    """Serves until it is refused."""
    backend = GatedProvider()
    given = SandboxSettings(run_dir=place / run, scratch_dir=place / scratch)
    probe = Probe(backend="process", works=True, isolation=backend.isolation, why="")
    await serve_sandboxes(given, backend, probe, node="here", stop=asyncio.Event(), hurry=asyncio.Event())


@pytest.mark.parametrize(("run", "scratch", "named"), [("run", "other", "run"), ("other", "scratch", "scratch"), ("run", "scratch", "run")])
async def test_one_service_a_folder(place: Path, run: str, scratch: str, named: str) -> None:
    """Two in one scratch folder: the second would sweep away what the first one has."""
    async with a_service(place, grace_s=0.0) as service, RemoteSandboxes(service.run) as remote:
        sandbox = await remote.start(PLAIN, an_owner())

        with pytest.raises(AlreadyServed, match=rf"{place / named} is served already, by process \d+: .*ROLLSTREAM_SANDBOX_SCRATCH_DIR"):
            await another(place, run=run, scratch=scratch)

        assert (await sandbox.exec("echo hi", timeout_s=10)).stdout == b"hi\n"
        async with RemoteSandboxes(service.run) as other:
            assert len(await other.views()) == 1
        await sandbox.stop()


@pytest.mark.parametrize(
    ("folder", "mode", "setting"),
    [("run", 0o755, "ROLLSTREAM_SANDBOX_RUN_DIR"), ("scratch", 0o770, "ROLLSTREAM_SANDBOX_SCRATCH_DIR")],
)
async def test_a_folder_that_others_may_enter_is_refused(place: Path, folder: str, mode: int, setting: str) -> None:
    (place / folder).mkdir()
    (place / folder).chmod(mode)

    with pytest.raises(Exception, match=rf"has mode 0{mode:o}, others may enter: .* set {setting}"):
        await another(place, run="run", scratch="scratch")

    assert not (place / "run" / SOCKET_NAME).exists()
