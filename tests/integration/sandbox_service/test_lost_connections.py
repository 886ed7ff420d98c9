"""A connection that ends at any step of a call: nothing half made is left, and what may be met again can be."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from pipeline.testing.wait import wait_until
from tests.integration.sandbox_life.nodes import an_owner, left, settings
from tests.integration.sandbox_service.nodes import PLAIN, WITH_IMAGE, Gate, GatedProvider, node_of
from tests.integration.sandbox_service.peers import RawPeer, bytes_of, peer
from workers.sandbox import SandboxGone, SandboxHandle, StaleAttempt
from workers.sandbox.archives import pack_files
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.service import RemoteSandboxes, SandboxServer, serving_here
from workers.sandbox.service.wire import CHUNK_BYTES, WINDOW


@asynccontextmanager
async def a_node(place: Path, backend: GatedProvider) -> AsyncIterator[SandboxServer]:
    async with serving_here(node_of(place, backend), place / "run", settings=settings()) as server:
        yield server


async def nothing_is_left(server: SandboxServer, place: Path) -> None:
    await server.node.settle()
    await wait_until(lambda: left(place) == [], "nothing is left")
    assert server.node.gates.running == 0


async def everybody_left(server: SandboxServer) -> None:
    await wait_until(lambda: not server.connections, "the service has seen the end")


async def raw_left(server: SandboxServer) -> None:
    """Of the connections of a test that has others too."""
    await wait_until(lambda: all(one.worker.boot != "raw" for one in server.connections), "the service has seen the end")


@pytest.mark.parametrize("step", ["image", "command"])
async def test_in_the_midst_of_a_start(place: Path, step: str) -> None:
    gate = Gate()
    backend = GatedProvider(at_image=gate) if step == "image" else GatedProvider(at_command=gate)
    async with a_node(place, backend) as server:
        async with peer(place / "run") as raw:
            raw.send({"id": 1, "op": "start", "spec": WITH_IMAGE, "owner": an_owner()})
            await gate.reached()
            raw.hang_up()
            await everybody_left(server)
        gate.open()

        await nothing_is_left(server, place)


async def test_right_behind_a_start(server: SandboxServer, place: Path) -> None:
    """Call and end come in the same read: the task of the call is cancelled before it takes a step."""
    async with peer(place / "run") as raw:
        raw.send({"id": 1, "op": "start", "spec": PLAIN, "owner": an_owner()})
        await raw.writer.drain()
        raw.hang_up()
        await everybody_left(server)

    await nothing_is_left(server, place)


async def a_parked_one(remote: RemoteSandboxes, job: str) -> SandboxHandle:
    sandbox = await remote.start(PLAIN, an_owner(job))
    await sandbox.write_file("made", b"by init")
    return await sandbox.park()


async def can_be_had(remote: RemoteSandboxes, handle: SandboxHandle, job: str, attempt: int) -> None:
    async with await remote.attach(handle, an_owner(job, attempt=attempt)) as sandbox:
        assert await sandbox.read_file("made") == b"by init"


async def test_in_the_midst_of_an_attach_leaves_it_parked(place: Path) -> None:
    """Nothing was changed: the next attempt goes on from what INIT made."""
    gate = Gate(is_open=True)
    backend = GatedProvider(at_command=gate)
    async with a_node(place, backend) as server, RemoteSandboxes(place / "run") as remote:
        handle = await a_parked_one(remote, "job")
        backend.at_command = gate = Gate()
        async with peer(place / "run") as raw:
            raw.send({"id": 1, "op": "attach", "handle": handle.to_map(), "owner": an_owner("job", attempt=2)})
            await gate.reached()
            raw.hang_up()
            await raw_left(server)
        gate.open()
        await server.node.settle()

        await can_be_had(remote, handle, "job", 3)

        await nothing_is_left(server, place)


async def test_attached_and_not_used_leaves_it_parked(server: SandboxServer, remote: RemoteSandboxes, place: Path) -> None:
    """Rule 4 of the interface holds over the wire too: it was ended here, and could be had again where its worker held it itself."""
    handle = await a_parked_one(remote, "job")
    async with peer(place / "run") as raw:
        raw.send({"id": 1, "op": "attach", "handle": handle.to_map(), "owner": an_owner("job", attempt=2)})
        assert "ok" in await raw.answer(1)
        raw.hang_up()
        await raw_left(server)
    await server.node.settle()

    assert [view.state for view in await remote.views()] == ["parked"]
    with pytest.raises(StaleAttempt):
        await remote.attach(handle, an_owner("job", attempt=1))
    await can_be_had(remote, handle, "job", 3)
    await nothing_is_left(server, place)


async def test_attached_and_used_ends_it(server: SandboxServer, remote: RemoteSandboxes, place: Path) -> None:
    handle = await a_parked_one(remote, "job")
    async with peer(place / "run") as raw:
        raw.send({"id": 1, "op": "attach", "handle": handle.to_map(), "owner": an_owner("job", attempt=2)})
        await raw.answer(1)
        raw.send({"id": 2, "op": "write_file", "path": "half", "content": b"x", "executable": False})
        await raw.answer(2)
        raw.hang_up()
        await raw_left(server)
    await server.node.settle()

    with pytest.raises(SandboxGone):
        await remote.attach(handle, an_owner("job", attempt=3))
    await nothing_is_left(server, place)


async def test_started_and_not_used_ends_it(server: SandboxServer, place: Path) -> None:
    """Nobody but its worker has the handle, and that one is gone."""
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        raw.hang_up()
        await everybody_left(server)

    await nothing_is_left(server, place)


async def test_in_the_midst_of_a_park_ends_it(server: SandboxServer, remote: RemoteSandboxes, place: Path) -> None:
    """Its worker hears that it is gone, so nobody will ever ask for it; parked all the same, it stayed until an agent asked Redis."""
    async with peer(place / "run") as raw:
        started = await raw.start(PLAIN, an_owner())
        provider = server.node.provider
        assert isinstance(provider, LocalSandboxes)
        [attachment] = server.node.attached.values()
        with attachment.sandbox.folder.held():  # so that parking stops in between, before its word
            raw.send({"id": 2, "op": "park"})
            await attachment.sandbox.wait_gone()
            raw.hang_up()
            await raw_left(server)
        await server.node.settle()

    with pytest.raises(SandboxGone):
        await remote.attach(SandboxHandle.from_map(started["handle"]), an_owner(attempt=2))
    await nothing_is_left(server, place)


async def test_right_behind_a_park_that_was_answered_leaves_it_parked(server: SandboxServer, remote: RemoteSandboxes, place: Path) -> None:
    handle = await a_parked_one(remote, "job")

    await server.node.settle()

    await can_be_had(remote, handle, "job", 2)


async def test_in_the_midst_of_a_command_ends_the_command(server: SandboxServer, place: Path) -> None:
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        command = "echo $$ >pid; sleep 600"
        raw.send({"id": 2, "op": "exec", "command": command, "stdin": b"", "cwd": "", "timeout_s": 600, "max_output_bytes": 1})
        [attachment] = server.node.attached.values()
        pid_file = attachment.sandbox.folder.home / "pid"
        await wait_until(lambda: pid_file.exists() and pid_file.read_text().strip(), "the command runs")
        pid = int(pid_file.read_text())
        raw.hang_up()
        await everybody_left(server)

    await nothing_is_left(server, place)
    assert not psutil.pid_exists(pid)


# -- archives -----------------------------------------------------------------------------------------------------------------------------


def spools() -> int:
    """Files without a name that this process has open: archives on their way."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += "(deleted)" in os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


async def an_upload_that_stops(raw: RawPeer, chunks: int) -> bytes:
    """Begins to upload, and stops in the middle of the archive, which is returned."""
    archive = pack_files({f"f{number}": bytes(CHUNK_BYTES) for number in range(8)}).read()
    raw.send({"id": 2, "op": "upload", "folder": "new", "max_bytes": 2**24})
    for number in range(chunks):
        raw.send({"id": 2, "chunk": archive[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]})
        while (message := await raw.next()) != {"id": 2, "took": 1}:
            assert message is not None
    return archive


@pytest.mark.parametrize("end", ["cancel", "hang up"])
async def test_an_upload_that_ends_in_the_middle_leaves_nothing(
    server: SandboxServer, remote: RemoteSandboxes, place: Path, end: str
) -> None:
    """Nothing is unpacked before all of it is here; what was here is gone with the call, and the connection can be used."""
    before = spools()
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        archive = await an_upload_that_stops(raw, chunks=6)
        assert spools() == before + 1
        if end == "hang up":
            raw.hang_up()
            await raw_left(server)
            await nothing_is_left(server, place)
        else:
            raw.send_bytes(bytes_of({"cancel": 2}, {"id": 2, "chunk": archive[-10:]}, {"id": 2, "end": 1}))
            assert (await raw.answer(2))["error"]["kind"] == "cancelled"
            raw.send({"id": 3, "op": "list", "path": "."})
            assert await raw.answer(3) == {"id": 3, "ok": []}

        await wait_until(lambda: spools() == before, "what was on its way is gone")


@pytest.mark.parametrize("end", ["cancel", "hang up"])
async def test_a_download_that_ends_in_the_middle_leaves_nothing(
    server: SandboxServer, remote: RemoteSandboxes, place: Path, end: str
) -> None:
    before = spools()
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        raw.send({"id": 2, "op": "write_file", "path": "big", "content": bytes(8 * CHUNK_BYTES), "executable": False})
        await raw.answer(2)
        raw.send({"id": 3, "op": "download", "path": "big", "max_bytes": 2**24})
        message = await raw.next()
        assert message is not None
        assert "chunk" in message
        assert spools() == before + 1
        if end == "hang up":
            raw.hang_up()
            await raw_left(server)
            await nothing_is_left(server, place)
        else:
            raw.send_bytes(bytes_of({"cancel": 3}, {"id": 3, "took": 1}))
            assert (await raw.answer(3))["error"]["kind"] == "cancelled"
            raw.send({"id": 4, "op": "list", "path": "."})
            assert len((await raw.answer(4))["ok"]) == 1

        await wait_until(lambda: spools() == before, "what was on its way is gone")


async def test_a_download_goes_no_further_than_it_is_taken(remote: RemoteSandboxes, place: Path) -> None:
    before = spools()
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        raw.send({"id": 2, "op": "write_file", "path": "big", "content": bytes(8 * CHUNK_BYTES), "executable": False})
        await raw.answer(2)
        raw.send({"id": 3, "op": "download", "path": "big", "max_bytes": 2**24})
        chunks = 0
        for number in range(10, 60):  # it would have had the time to send them all
            raw.send({"id": number, "op": "list", "path": "."})
            while (message := await raw.next()) is not None and message.get("id") != number:
                chunks += "chunk" in message

        assert chunks == WINDOW
        assert spools() == before + 1


@pytest.mark.parametrize("way", ["upload", "download"])
async def test_a_worker_that_cancels_an_archive_goes_on_with_its_sandbox(remote: RemoteSandboxes, way: str) -> None:
    archive = pack_files({"f": bytes(64 * CHUNK_BYTES)})
    async with await remote.start(PLAIN, an_owner()) as sandbox:
        await sandbox.write_file("big", bytes(40 * CHUNK_BYTES))
        moved = asyncio.Event()
        stream = _Telling(archive.read() if way == "upload" else b"", moved, asyncio.get_running_loop())
        moving = asyncio.create_task(sandbox.upload(stream, "new") if way == "upload" else sandbox.download("big", stream))  # type: ignore[arg-type]
        await moved.wait()

        moving.cancel()

        with pytest.raises(asyncio.CancelledError):
            await moving
        assert [entry.name for entry in await sandbox.list()] == ["big"]
        again = pack_files({"small": b"x"})
        await sandbox.upload(again, "new")
        assert [entry.name for entry in await sandbox.list("new")] == ["small"]


class _Telling:
    """A stream that says when some chunks have passed."""

    def __init__(self, content: bytes, moved: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        self._content = content
        self._moved = moved
        self._loop = loop
        self._passes = 0

    def _pass(self) -> None:
        self._passes += 1
        if self._passes == 8:
            self._loop.call_soon_threadsafe(self._moved.set)

    def read(self, size: int) -> bytes:
        self._pass()
        chunk, self._content = self._content[:size], self._content[size:]
        return chunk

    def write(self, data: bytes) -> int:
        self._pass()
        return len(data)
