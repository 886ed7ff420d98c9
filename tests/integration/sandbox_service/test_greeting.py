"""Nobody is anybody before the greeting is right; whoever is not understood hears why, and only his own connection ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.testing.wait import wait_until
from tests.integration.sandbox_life.nodes import an_owner, settings
from tests.integration.sandbox_service.nodes import PLAIN, node_of
from tests.integration.sandbox_service.peers import bytes_of, cut_up, peer, stranger
from workers.sandbox.service import NodeSandboxes, RemoteSandboxes, SandboxServer, ServiceNotThere
from workers.sandbox.service.peer import Patience
from workers.sandbox.service.server import SOCKET_NAME, TOKEN_NAME
from workers.sandbox.service.wire import HEADER, HELLO_BYTES, MAX_FRAME_BYTES, PART_BYTES, VERSION, Message, frame


@pytest.fixture
def patience(request: pytest.FixtureRequest) -> Patience:
    return Patience(hello_s=0.2, frame_s=0.2) if "impatient" in request.fixturenames else Patience()


@pytest.fixture
def impatient() -> None:
    """Asks for a service that waits for a moment only."""


def hello(place: Path, **changes: object) -> Message:
    token = (place / "run" / TOKEN_NAME).read_text()
    return {"hello": VERSION, "token": token, "boot": "b", "fleet": "", **changes}


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({"token": "0" * 64}, "wrong token"),
        ({"token": "\ud800"}, "wrong token"),
        ({"token": None}, "wrong token"),
        ({"hello": VERSION + 1}, f"hello of version {VERSION + 1}, this service speaks {VERSION}"),
        ({"hello": "1"}, "hello of version '1'"),
        ({"boot": 7}, "boot and fleet should be texts"),
        ({"fleet": ["a"]}, "boot and fleet should be texts"),
    ],
)
async def test_a_greeting_that_is_wrong_is_refused_with_the_reason(
    server: SandboxServer, place: Path, said: dict[str, object], answer: str
) -> None:
    async with stranger(place / "run") as raw:
        raw.send(hello(place, **said))

        assert answer in await raw.refusal()

    await everybody_left(server)


@pytest.mark.parametrize(
    "message",
    [
        {"id": 1, "op": "start", "spec": PLAIN, "owner": an_owner()},
        {"id": 1, "op": "views", "prefix": "", "processes": False},
        {"id": 1, "op": "end", "sandboxes": ["x"], "why": ""},
        {"cancel": 1},
        {},
    ],
)
async def test_nothing_is_done_for_who_has_not_greeted(server: SandboxServer, place: Path, message: Message) -> None:
    async with stranger(place / "run") as raw:
        raw.send(message)

        assert "hello of version None" in await raw.refusal()

    await everybody_left(server)
    assert await server.node.owned() == []


async def test_a_stranger_has_nothing_kept_for_him(server: SandboxServer, place: Path) -> None:
    """A message in parts may be a quarter of a gigabyte; before the greeting anybody could have had as much put by, on each connection."""
    async with stranger(place / "run") as raw:
        raw.send({"id": 0, "part": b"x" * (HELLO_BYTES // 2), "more": 1})

        assert "a part of a message" in await raw.refusal()

    async with stranger(place / "run") as raw:
        raw.send_bytes(HEADER.pack(HELLO_BYTES + 1))

        assert f"at most {HELLO_BYTES:,} are taken here" in await raw.refusal()


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (HEADER.pack(2**32 - 1), "a frame of 4,294,967,295 bytes"),
        (HEADER.pack(MAX_FRAME_BYTES + 1), f"at most {MAX_FRAME_BYTES:,} are taken here"),
        (HEADER.pack(0), "a frame of 0 bytes"),
        (frame(b"\xc1"), "a frame that is no msgpack"),
        (frame(b"\x91" * 5000), "a frame that is no msgpack"),
        (frame(b"\x81\x01\x01"), "a frame that"),
        (frame(b"\x90"), "a frame that holds a list"),
        (frame(b"\x80"), "a frame that is no call"),
    ],
    ids=["all ones", "one too many", "empty", "no type", "deep", "number as key", "list", "no call"],
)
async def test_bytes_that_are_no_frame_end_that_connection_and_no_other(
    server: SandboxServer, remote: RemoteSandboxes, place: Path, data: bytes, answer: str
) -> None:
    async with peer(place / "run") as raw:
        raw.send_bytes(data)

        assert answer in await raw.refusal()

    assert await remote.views() == []


async def test_parts_that_are_too_much_or_no_bytes_end_the_connection(remote: RemoteSandboxes, place: Path) -> None:
    for part in ("text", ["x"], 7):
        async with peer(place / "run") as raw:
            raw.send({"id": 0, "part": part, "more": 1})

            assert "parts of a message" in await raw.refusal()

    async with peer(place / "run") as raw:
        raw.send({"id": 0, "part": b"\x81\xa2id", "more": 1})
        raw.send({"id": 0, "part": b"x" * PART_BYTES, "more": 0})

        assert "a frame that is no msgpack" in await raw.refusal()
    assert await remote.views() == []


async def test_who_does_not_greet_is_cut_off(server: SandboxServer, place: Path, impatient: None) -> None:
    async with stranger(place / "run") as raw:
        assert "no hello within 0.2 s" in await raw.refusal()

    await everybody_left(server)


async def test_half_a_frame_and_silence_is_cut_off_and_its_sandbox_ends(server: SandboxServer, place: Path, impatient: None) -> None:
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        raw.send_bytes(HEADER.pack(100) + b"half")

        assert "not ended within 0.2 s" in await raw.refusal()

    await nothing_is_left(server)


async def test_half_a_hello_and_silence_is_cut_off(server: SandboxServer, place: Path, impatient: None) -> None:
    async with stranger(place / "run") as raw:
        raw.send_bytes(bytes_of(hello(place))[:-1])

        assert "within 0.2 s" in await raw.refusal()

    await everybody_left(server)


async def test_frames_that_come_byte_by_byte_are_frames(server: SandboxServer, place: Path) -> None:
    async with stranger(place / "run") as raw:
        owner = an_owner()
        calls = ({"id": 7, "op": "start", "spec": PLAIN, "owner": owner}, {"id": 8, "op": "list", "path": "."})
        for byte in cut_up(bytes_of(hello(place), *calls[:1])):
            raw.send_bytes(byte)
            await raw.writer.drain()
        started = await raw.answer(7)
        for byte in cut_up(bytes_of(*calls[1:])):
            raw.send_bytes(byte)
            await raw.writer.drain()

        assert started["ok"]["workdir"]
        assert await raw.answer(8) == {"id": 8, "ok": []}


async def test_a_token_that_cannot_be_read_is_said(server: SandboxServer, place: Path) -> None:
    token = place / "run" / TOKEN_NAME
    kept = token.read_text()
    token.unlink()
    token.mkdir()  # nobody reads that, root included

    with pytest.raises(ServiceNotThere, match="Is a directory"):
        async with RemoteSandboxes(place / "run"):
            pass

    token.rmdir()
    token.write_text(kept)
    async with RemoteSandboxes(place / "run") as remote:
        assert await remote.views() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
async def test_a_token_without_permission_is_said(server: SandboxServer, place: Path) -> None:
    (place / "run" / TOKEN_NAME).chmod(0)

    with pytest.raises(ServiceNotThere, match="Permission denied"):
        async with RemoteSandboxes(place / "run"):
            pass


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
async def test_a_service_in_a_folder_that_others_may_enter_is_not_spoken_to(server: SandboxServer, place: Path, mode: int) -> None:
    """Whoever makes `/tmp/rollstream-UID` before its user does could offer a service of his own there, and be told what sandboxes run."""
    (place / "run").chmod(mode)

    with pytest.raises(ServiceNotThere, match=r"others may enter: .* set ROLLSTREAM_SANDBOX_RUN_DIR"):
        async with RemoteSandboxes(place / "run"):
            pass

    assert not server.connections
    (place / "run").chmod(0o700)


async def test_the_token_and_the_socket_are_their_users_alone(server: SandboxServer, place: Path) -> None:
    run = place / "run"

    modes = {path.name: path.stat().st_mode & 0o777 for path in (run, run / TOKEN_NAME, run / SOCKET_NAME)}

    assert modes == {"run": 0o700, TOKEN_NAME: 0o600, SOCKET_NAME: 0o600}


async def test_one_connection_too_many_is_told_so_and_the_others_go_on(place: Path) -> None:
    provider = node_of(place)
    async with (
        provider,
        NodeSandboxes(provider, settings()) as node,
        SandboxServer(node, place / "run", dict, max_connections=3) as server,
        RemoteSandboxes(place / "run") as remote,
    ):
        sandbox = await remote.start(PLAIN, an_owner())
        await remote.spare.settle()
        with pytest.raises(ServiceNotThere, match="3 connections are open already"):
            async with RemoteSandboxes(place / "run"):
                pass
        assert (await sandbox.exec("echo hi", timeout_s=10)).stdout == b"hi\n"
        await sandbox.stop()
        await wait_until(lambda: len(server.connections) == 2, "its connection has ended")

        async with RemoteSandboxes(place / "run") as other:
            assert await other.views() == []


async def everybody_left(server: SandboxServer) -> None:
    await wait_until(lambda: not server.connections, "the connection has ended")


async def nothing_is_left(server: SandboxServer) -> None:
    async def is_empty() -> bool:
        return await server.node.owned() == []

    await wait_until(is_empty, "its sandbox has ended")
