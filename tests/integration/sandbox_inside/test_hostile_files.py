"""Operations on files whose other side says whatever it likes: they end, typed, and hold no more than was asked for."""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
from collections.abc import Awaitable, Callable

import pytest

from tests.integration.sandbox_inside.servers import Above, FalseServer
from workers.sandbox.errors import SandboxError, SandboxFileError
from workers.sandbox.inside import InsideFiles, InsideLauncher
from workers.sandbox.inside.guest import frames
from workers.sandbox.inside.guest.file_operations import DATA, DONE, ENTRIES

DONE_WELL = frames.frame(DONE, 0, b"{}")
LIES = {
    "more than was asked for": frames.frame(DATA, 0, bytes(101)) + DONE_WELL,
    "names where content was asked for": frames.frame(ENTRIES, 0, b"[]") + DONE_WELL,
    "an unknown kind": frames.frame(9, 0),
    "an answer that is no JSON": frames.frame(DONE, 0, b"\xff"),
    "an answer too deep to be read": frames.frame(DONE, 0, b"[" * 60_000),
    "an answer that is a list": frames.frame(DONE, 0, b"[]"),
    "an answer of numbers": frames.frame(DONE, 0, b'{"trouble": 5}'),
    "an unknown trouble": frames.frame(DONE, 0, b'{"trouble": "evil", "detail": ""}'),
    "a trouble without words": frames.frame(DONE, 0, b'{"trouble": "denied"}'),
}
NAMES = {
    "content": frames.frame(DATA, 0, b"x"),
    "no list": frames.frame(ENTRIES, 0, b"{}"),
    "no entries": frames.frame(ENTRIES, 0, b"[5]"),
    "names that are no digits": frames.frame(ENTRIES, 0, json.dumps([["xx", "file", 1]]).encode()),
    "a kind that is none": frames.frame(ENTRIES, 0, json.dumps([["61", "evil", 1]]).encode()),
    "a size that is none": frames.frame(ENTRIES, 0, json.dumps([["61", "file", True]]).encode()),
    "a size below nothing": frames.frame(ENTRIES, 0, json.dumps([["61", "file", -1]]).encode()),
    "entries of many parts": frames.frame(ENTRIES, 0, json.dumps([["61", "file", 1, 1]]).encode()),
}


async def served(server: FalseServer, says: bytes, *, then_closes: bool = True) -> socket.socket:
    """Takes the next operation, and says that on its socket."""
    _, number, _ = await server.heard()
    connection = socket.socket(fileno=server.descriptors.pop())
    await server.say(frames.reply(frames.STARTED, number, 5))
    await asyncio.to_thread(connection.sendall, says)
    if then_closes:
        connection.close()
    return connection


async def running(work: Callable[[], object], serving: Awaitable[socket.socket]) -> object:
    operation = asyncio.create_task(asyncio.to_thread(work))
    with await serving:
        return await operation


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_about_a_file_ends_the_sandbox(launcher: InsideLauncher, server: FalseServer, above: Above, lie: str) -> None:
    files = InsideFiles(launcher)

    with pytest.raises(SandboxError, match="read of 'x'"):
        await running(lambda: files.read("x", 100), served(server, LIES[lie]))

    assert "broke the protocol" in await asyncio.wait_for(above.gone, 10)


@pytest.mark.parametrize("lie", NAMES)
async def test_a_lie_about_a_folder_ends_the_sandbox(launcher: InsideLauncher, server: FalseServer, above: Above, lie: str) -> None:
    files = InsideFiles(launcher)

    with pytest.raises(SandboxError, match="list of 'x'"):
        await running(lambda: files.list("x"), served(server, NAMES[lie]))

    assert "broke the protocol" in await asyncio.wait_for(above.gone, 10)


async def test_who_ends_in_the_middle_costs_the_operation_and_not_the_sandbox(
    launcher: InsideLauncher, server: FalseServer, above: Above
) -> None:
    """The guest can kill the process that works on its files."""
    files = InsideFiles(launcher)

    operation = asyncio.create_task(asyncio.to_thread(files.read, "x", 100))
    (await served(server, frames.frame(DATA, 0, b"half"))).close()
    kind, number, content = await server.heard()
    while kind != frames.ASK:
        kind, number, content = await server.heard()
    await server.say(frames.reply(frames.STARTED, number, 1), frames.reply(frames.ENDED, number, 0))

    assert json.loads(content)["do"] == "nothing"
    with pytest.raises(SandboxError, match="ended during read"):
        await operation
    assert not above.is_ending


async def test_who_goes_silent_is_killed(launcher: InsideLauncher, server: FalseServer, above: Above) -> None:
    files = InsideFiles(launcher, still_s=0.05)

    with pytest.raises(SandboxError, match=r"nothing moved for 0.05 s"):
        await running(lambda: files.read("x", 100), served(server, frames.frame(DATA, 0, b"half"), then_closes=False))

    kind, number, _ = await server.heard()
    assert (kind, number) == (frames.KILL, 1)
    assert not above.is_ending


async def test_who_takes_nothing_of_an_upload_is_killed(launcher: InsideLauncher, server: FalseServer, above: Above) -> None:
    files = InsideFiles(launcher, still_s=0.05)

    with pytest.raises(SandboxError, match=r"nothing moved for 0.05 s"):
        await running(lambda: files.upload(io.BytesIO(bytes(8 * 1024 * 1024)), "x", 2**30), served(server, b"", then_closes=False))

    assert (await server.heard())[0] == frames.KILL
    assert not above.is_ending


async def test_a_flood_of_names_is_cut(launcher: InsideLauncher, server: FalseServer, above: Above) -> None:
    """A folder can have more names than anybody wants to hold: that is an answer, and no lie."""
    names = frames.frame(ENTRIES, 0, json.dumps([["61" * 200, "file", 1]] * 140).encode())
    files = InsideFiles(launcher, list_bytes=1024 * 1024)
    operation = asyncio.create_task(asyncio.to_thread(files.list, "x"))
    _, number, _ = await server.heard()
    with socket.socket(fileno=server.descriptors.pop()) as connection:
        await server.say(frames.reply(frames.STARTED, number, 5))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            await asyncio.to_thread(connection.sendall, names * 200)

    with pytest.raises(SandboxFileError) as caught:
        await operation
    assert caught.value.trouble == "too_large"
    assert not above.is_ending


async def test_what_is_true_is_believed(launcher: InsideLauncher, server: FalseServer) -> None:
    files = InsideFiles(launcher)

    content = await running(lambda: files.read("x", 100), served(server, frames.frame(DATA, 0, b"a" * 50) * 2 + DONE_WELL))
    listed = await running(
        lambda: files.list("."),
        served(server, frames.frame(ENTRIES, 0, json.dumps([[os.fsencode("ä").hex(), "file", 3]]).encode()) + DONE_WELL),
    )
    with pytest.raises(SandboxFileError) as caught:
        await running(lambda: files.read("x", 100), served(server, frames.frame(DONE, 0, b'{"trouble": "not_found", "detail": "gone"}')))

    assert content == b"a" * 100
    assert [(entry.name, entry.kind, entry.size_bytes) for entry in listed] == [("ä", "file", 3)]  # type: ignore[attr-defined]
    assert (caught.value.trouble, caught.value.detail) == ("not_found", "gone")
