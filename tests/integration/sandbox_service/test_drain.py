"""A service that is told to end: nobody new, a grace for those who are there, and nothing left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pipeline.testing.wait import wait_until
from tests.integration.sandbox_life.nodes import an_owner
from tests.integration.sandbox_service.nodes import PLAIN, WITH_IMAGE, Gate, GatedProvider
from workers.sandbox import NodeUnavailable, Probe, SandboxGone, SandboxTaken
from workers.sandbox.service import RemoteSandboxes, ServiceNotThere
from workers.sandbox.service.server import SOCKET_NAME, TOKEN_NAME
from workers.sandbox.service.serving import LOCK_NAME, serve_sandboxes
from workers.sandbox.service.settings import SANDBOXES, SandboxSettings

LONG_S = 600.0
SHORT_S = 0.2


class Service:
    """A whole service, but for its process: `stop` and `hurry` are its signals."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.run = place / "run"
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.serving: asyncio.Task[None] | None = None

    async def ended(self) -> None:
        assert self.serving is not None
        async with asyncio.timeout(20):
            await self.serving

    @property
    def is_over(self) -> bool:
        return self.serving is not None and self.serving.done()

    def left(self) -> list[str]:
        own = {"run", "scratch", SANDBOXES, LOCK_NAME}
        return sorted(str(path.relative_to(self.place)) for path in self.place.rglob("*") if path.name not in own)


@asynccontextmanager
async def a_service(
    place: Path, backend: GatedProvider | None = None, *, grace_s: float, while_used_s: float | None = None
) -> AsyncIterator[Service]:
    service = Service(place)
    backend = backend or GatedProvider()
    settings = SandboxSettings(run_dir=service.run, scratch_dir=place / "scratch", grace_s=grace_s, janitor_s=3600.0)
    probe = Probe(backend="process", works=True, isolation=backend.isolation, why="")
    service.serving = asyncio.create_task(
        serve_sandboxes(
            settings, backend, probe, node="here", stop=service.stop, hurry=service.hurry, images=backend, while_used_s=while_used_s
        )
    )
    await wait_until(lambda: service.is_over or (service.run / SOCKET_NAME).exists(), "it serves")
    try:
        yield service
    finally:
        service.stop.set()
        service.hurry.set()
        await service.ended()


async def nobody_new(service: Service) -> None:
    await wait_until(lambda: not (service.run / SOCKET_NAME).exists(), "it has heard the signal")
    with pytest.raises(ServiceNotThere):
        async with RemoteSandboxes(service.run):
            pass
    assert not (service.run / TOKEN_NAME).exists()


async def test_an_attachment_that_works_on_ends_by_itself(place: Path) -> None:
    async with a_service(place, grace_s=LONG_S) as service, RemoteSandboxes(service.run) as remote:
        sandbox = await remote.start(PLAIN, an_owner())
        working = asyncio.create_task(sandbox.exec("read -r word; echo $word", stdin=b"done\n", timeout_s=30))

        service.stop.set()
        await nobody_new(service)

        assert (await working).stdout == b"done\n"
        await sandbox.write_file("more", b"x")
        assert (await sandbox.shell().run("cat more", timeout_s=10)).output == "x"
        assert not service.is_over
        await sandbox.stop()
        await service.ended()
        assert service.left() == []


async def test_an_attachment_that_never_ends_is_ended_after_the_grace_and_told_so(place: Path) -> None:
    """Its worker hears that the node took it: the job goes back uncounted, as nothing in the sandbox is to blame."""
    async with a_service(place, grace_s=SHORT_S) as service, RemoteSandboxes(service.run) as remote:
        sandbox = await remote.start(PLAIN, an_owner())
        working = asyncio.create_task(sandbox.exec("trap '' TERM; sleep 600; sleep 600", timeout_s=LONG_S))

        service.stop.set()

        with pytest.raises(SandboxTaken):
            await working
        await service.ended()
        assert service.left() == []
        with pytest.raises(SandboxTaken):
            await sandbox.list()


async def test_a_second_signal_ends_it_at_once(place: Path) -> None:
    async with a_service(place, grace_s=LONG_S) as service, RemoteSandboxes(service.run) as remote:
        sandbox = await remote.start(PLAIN, an_owner())
        service.stop.set()
        await nobody_new(service)

        service.hurry.set()

        assert await sandbox.wait_gone()
        await service.ended()
        assert service.left() == []


async def test_what_is_parked_is_not_waited_for_and_ends(place: Path) -> None:
    """Its epoch ends with the service: nobody can attach to it any more."""
    async with a_service(place, grace_s=LONG_S) as service:
        async with RemoteSandboxes(service.run) as remote:
            sandbox = await remote.start(PLAIN, an_owner("job"))
            await sandbox.write_file("made", b"x")
            handle = await sandbox.park()

        service.stop.set()
        await service.ended()

        assert service.left() == []
    async with a_service(place, grace_s=0.0) as service, RemoteSandboxes(service.run) as remote:
        with pytest.raises(SandboxGone):
            await remote.attach(handle, an_owner("job", attempt=2))


async def test_while_it_drains_nothing_starts_and_nothing_is_attached(place: Path) -> None:
    async with a_service(place, grace_s=LONG_S) as service, RemoteSandboxes(service.run) as remote:
        first = await remote.start(PLAIN, an_owner())
        second = await remote.start(PLAIN, an_owner())
        links = [await remote._new_link() for _ in range(2)]  # connected, and not asked for anything yet
        service.stop.set()
        await nobody_new(service)
        handle = await second.park()

        with pytest.raises(NodeUnavailable, match="stops"):
            await links[0].call("start", spec=PLAIN, owner=an_owner())
        with pytest.raises(NodeUnavailable, match="stops"):
            await links[1].call("attach", handle=handle.to_map(), owner=an_owner())

        for link in links:
            link.close()

        await first.stop()
        await service.ended()
        assert service.left() == []


@pytest.mark.parametrize("step", ["image", "command"])
async def test_a_start_on_its_way_has_the_grace_too(place: Path, step: str) -> None:
    gate = Gate()
    backend = GatedProvider(at_image=gate) if step == "image" else GatedProvider(at_command=gate)
    async with a_service(place, backend, grace_s=LONG_S) as service, RemoteSandboxes(service.run) as remote:
        starting = asyncio.create_task(remote.start(WITH_IMAGE, an_owner()))
        await gate.reached()
        service.stop.set()
        await nobody_new(service)

        gate.open()

        sandbox = await starting
        assert (await sandbox.exec("echo hi", timeout_s=10)).stdout == b"hi\n"
        await sandbox.stop()
        await service.ended()
        assert service.left() == []


@pytest.mark.parametrize("step", ["image", "command"])
async def test_a_start_that_is_longer_than_the_grace_is_cut_short_and_leaves_nothing(place: Path, step: str) -> None:
    """Nobody waited for it: the folder it made when the service had looked for the last time was left, and its worker heard of a lost
    connection where it should hear that the node stops."""
    gate = Gate()
    backend = GatedProvider(at_image=gate) if step == "image" else GatedProvider(at_command=gate)
    async with a_service(place, backend, grace_s=0.0) as service, RemoteSandboxes(service.run) as remote:
        starting = asyncio.create_task(remote.start(WITH_IMAGE, an_owner()))
        await gate.reached()

        service.stop.set()

        with pytest.raises(NodeUnavailable, match="stops"):
            await starting
        assert not service.is_over
        gate.open()
        await service.ended()
        assert service.left() == []


async def test_who_only_asks_does_not_hold_it_up(place: Path) -> None:
    async with a_service(place, grace_s=LONG_S) as service, RemoteSandboxes(service.run) as remote:
        assert await remote.views() == []

        service.stop.set()

        await service.ended()
        assert await remote.lost
        with pytest.raises(NodeUnavailable):
            await remote.views()


# -- a service that workers start for themselves ----------------------------------------------------------------------------------------


async def test_it_ends_when_nobody_is_connected_any_more(place: Path) -> None:
    async with a_service(place, grace_s=LONG_S, while_used_s=0.0) as service:
        async with RemoteSandboxes(service.run), RemoteSandboxes(service.run):
            pass

        await service.ended()
        assert service.left() == []


async def test_it_does_not_end_while_somebody_is(place: Path) -> None:
    async with a_service(place, grace_s=LONG_S, while_used_s=0.0) as service, RemoteSandboxes(service.run) as remote:
        for _ in range(3):
            async with RemoteSandboxes(service.run) as other:
                await other.views()

        sandbox = await remote.start(PLAIN, an_owner())

        await sandbox.stop()
        assert not service.is_over


async def test_it_ends_its_parked_ones_with_the_last_worker(place: Path) -> None:
    async with a_service(place, grace_s=LONG_S, while_used_s=0.0) as service:
        async with RemoteSandboxes(service.run) as remote:
            await (await remote.start(PLAIN, an_owner())).park()

        await service.ended()
        assert service.left() == []


async def test_it_waits_a_while_for_the_next(place: Path) -> None:
    """Workers are often started again at once."""
    async with a_service(place, grace_s=LONG_S, while_used_s=LONG_S) as service:
        for _ in range(3):
            async with RemoteSandboxes(service.run) as remote:
                await (await remote.start(PLAIN, an_owner())).stop()

        assert not service.is_over
