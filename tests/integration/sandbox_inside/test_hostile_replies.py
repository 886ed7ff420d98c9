"""What comes from inside is data: whatever an execution server says, the sandbox ends typed, and nothing of it is kept.

A server can be the guest's own program: Python lies in the image, and what an earlier attachment changed there is met by the next.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import Callable

import pytest

from pipeline.testing.wait import wait_until
from tests.integration.sandbox_inside.servers import Above, FalseServer
from workers.sandbox.errors import SandboxGone
from workers.sandbox.inside import InsideLauncher
from workers.sandbox.inside.connection import WINDOW, InsideProcess, ServerConnection
from workers.sandbox.inside.guest import frames
from workers.sandbox.launcher import LaunchedProcess

STARTED = frames.reply(frames.STARTED, 1, 7)
ENDED = frames.reply(frames.ENDED, 1, 0)
LIES = {
    "a length above all answers": struct.pack(">HBI", 0xFFFF, frames.STARTED, 1),
    "an answer without a value": frames.frame(frames.STARTED, 1, b"\0"),
    "an answer above the bound": frames.frame(frames.FAILED, 1, b"\0" * (frames.MAX_REPLY_BYTES + 1)),
    "an unknown kind": frames.frame(99, 1, bytes(4)),
    "a kind of the worker's": frames.frame(frames.KILL, 1, bytes(4)),
    "an unknown number": frames.reply(frames.STARTED, 2, 7),
    "the number of nobody": frames.reply(frames.FAILED, 0xFFFFFFFF, 2),
    "an end before a start": ENDED,
    "two starts": STARTED + STARTED,
    "a failure after a start": STARTED + frames.reply(frames.FAILED, 1, 2),
    "a greeting of another version": frames.reply(frames.READY, 0, frames.VERSION + 1),
    "two greetings": frames.reply(frames.READY, 0, frames.VERSION) * 2,
    "noise": os.urandom(4096).replace(b"\0", b"\xff"),
}


def spawning(launcher: InsideLauncher) -> asyncio.Task[LaunchedProcess]:
    """A start that waits for its answer."""
    null = os.open(os.devnull, os.O_RDWR)

    async def spawn() -> LaunchedProcess:
        try:
            return await launcher.spawn(["true"], env={}, cwd="/", fds={0: null, 1: null, 2: null})
        finally:
            os.close(null)

    return asyncio.create_task(spawn())


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_ends_the_sandbox_and_everybody_is_told(launcher: InsideLauncher, server: FalseServer, above: Above, lie: str) -> None:
    start = spawning(launcher)
    await server.heard()

    await server.say(LIES[lie])

    why = await asyncio.wait_for(above.gone, 10)
    assert "broke the protocol" in why
    with pytest.raises(SandboxGone, match="broke the protocol"):
        await (await start).wait()
    with pytest.raises(SandboxGone):
        await spawning(launcher)
    with pytest.raises(SandboxGone):
        launcher.check_open()


async def test_a_second_end_is_a_lie_too(launcher: InsideLauncher, server: FalseServer, above: Above) -> None:
    start = spawning(launcher)
    await server.heard()

    await server.say(STARTED, ENDED, ENDED)

    assert await (await start).wait() == 0
    assert "which nobody waits for" in await asyncio.wait_for(above.gone, 10)


async def test_half_an_answer_is_the_end_of_the_server(launcher: InsideLauncher, server: FalseServer, above: Above) -> None:
    start = spawning(launcher)
    await server.heard()

    await server.say(STARTED[:-1])
    server.control.shutdown(socket.SHUT_WR)

    with pytest.raises(SandboxGone, match="in the middle of an answer"):
        await start
    assert above.is_ending


async def test_a_flood_costs_one_frame(launcher: InsideLauncher, server: FalseServer, above: Above) -> None:
    """It is cut at the first frame that answers nothing, however much comes behind it."""
    flood = asyncio.create_task(server.say(frames.reply(frames.ENDED, 5, 0) * 1_000_000))

    assert "broke the protocol" in await asyncio.wait_for(above.gone, 10)

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        await flood


async def test_a_descriptor_that_is_sent_along_is_not_taken(launcher: InsideLauncher, server: FalseServer) -> None:
    start = spawning(launcher)
    await server.heard()
    treasure, other = socket.socketpair()

    with other:
        await server.give(STARTED, treasure.fileno())
        process = await start
        treasure.close()

        assert process.pid == 7
        assert other.recv(1) == b""  # nobody has the other end any more


async def test_silence_after_a_start_has_an_end(above: Above) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        connection = ServerConnection("sandbox", ours, above.end_because, answer_s=0.05)
        with pytest.raises(SandboxGone, match="did not answer"):
            await connection.start({"do": "run", "fds": []}, [])

    assert above.is_ending


async def test_silence_after_the_greeting_has_an_end(above: Above) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        connection = ServerConnection("sandbox", ours, above.end_because)
        with pytest.raises(SandboxGone, match="gave no sign"):
            await connection.greet(bytes(32), limits={}, seccomp=b"", timeout_s=0.05)

    assert above.is_ending


async def test_to_one_that_reads_nothing_little_is_sent(launcher: InsideLauncher, server: FalseServer) -> None:
    """Descriptors that lie in a socket count for the whole user: a few such sandboxes would keep all others from starting anything."""
    starts = [spawning(launcher) for _ in range(4 * WINDOW)]
    numbers = [(await server.heard())[1] for _ in range(WINDOW)]

    assert numbers == list(range(1, WINDOW + 1))
    server.control.setblocking(False)
    with pytest.raises(BlockingIOError):
        server.control.recv(1)
    for start in starts:
        start.cancel()
    await asyncio.wait(starts)


async def test_one_that_never_reads_is_given_up(launcher: InsideLauncher, server: FalseServer, above: Above) -> None:
    start = spawning(launcher)
    await server.heard()
    await server.say(STARTED)
    process = await start

    while not above.gone.done():
        launcher.kill(process, "group", signal.SIGTERM)

    assert "does not read" in above.gone.result()


async def test_a_start_that_is_cancelled_is_killed_by_its_number(launcher: InsideLauncher, server: FalseServer) -> None:
    start = spawning(launcher)
    _, number, _ = await server.heard()

    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start

    kind, killed, content = await server.heard()
    assert (kind, killed, frames.read_kill(content)) == (frames.KILL, number, ("tree", signal.SIGKILL))
    await server.say(STARTED, ENDED)  # answers to it are no lies
    again = spawning(launcher)
    await server.heard()
    await server.say(frames.reply(frames.FAILED, 2, 2, "no such program"))
    with pytest.raises(FileNotFoundError, match="no such program"):
        await again


async def test_what_ends_while_the_sandbox_is_ended_is_of_that_end(launcher: InsideLauncher, server: FalseServer, above: Above) -> None:
    """The end asks processes to go. That one of them did is no answer to whoever waits for its command."""
    start = spawning(launcher)
    await server.heard()
    await server.say(STARTED)
    process = await start
    waiting = asyncio.create_task(process.wait())

    above.is_ending = True
    await server.say(ENDED)
    server.control.close()
    above.gone.set_result("it was stopped")

    with pytest.raises(SandboxGone, match="it was stopped"):
        await waiting


async def test_a_long_request_goes_in_parts(launcher: InsideLauncher, server: FalseServer) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    start = asyncio.create_task(launcher.spawn(["echo", "x" * 200_000], env={}, cwd="/", fds={0: null, 1: null, 2: null}))

    heard = [await server.heard()]
    while heard[-1][0] == frames.PART:
        heard.append(await server.heard())

    assert [kind for kind, _, _ in heard] == [frames.PART] * 3 + [frames.ASK]
    assert len(server.descriptors) == 3
    await server.say(STARTED)
    assert isinstance(await start, InsideProcess)
    os.close(null)


async def test_decoding_is_the_same_however_the_stream_is_cut() -> None:
    stream = b"".join(frames.reply(kind, number, number, "text" * number) for number in range(20) for kind in frames.REPLIES)
    cuts: list[Callable[[], list[bytes]]] = [
        lambda: [stream],
        lambda: [stream[at : at + 1] for at in range(len(stream))],
        lambda: [stream[at : at + 13] for at in range(0, len(stream), 13)],
    ]

    found = []
    for cut in cuts:
        decoder = frames.Decoder(frames.MAX_REPLY_BYTES)
        found.append([each for piece in cut() for each in decoder.feed(piece)])
        assert not decoder.is_partial

    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 80


async def test_that_the_holder_ended_is_told_to_who_waits(launcher: InsideLauncher, server: FalseServer, above: Above) -> None:
    start = spawning(launcher)
    await server.heard()

    above.gone.set_result("PID 1 of it was killed")

    with pytest.raises(SandboxGone, match="PID 1 of it was killed"):
        await start
    await wait_until(lambda: bool(launcher.connection.closed), "the connection is closed")
