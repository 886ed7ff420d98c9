"""Peers that have the token and behave badly: the service lives, keeps little for them, answers all others, and ends their sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pipeline.testing.wait import wait_until
from tests.integration.sandbox_life.nodes import an_owner
from tests.integration.sandbox_service.nodes import PLAIN
from tests.integration.sandbox_service.peers import RawPeer, bytes_of, peer
from workers.sandbox import SandboxGone, SandboxTaken
from workers.sandbox.service import RemoteSandboxes, SandboxServer
from workers.sandbox.service.connection import Connection
from workers.sandbox.service.operations import MAX_CONTENT_BYTES
from workers.sandbox.service.peer import MAX_UNSENT_BYTES, Patience
from workers.sandbox.service.wire import MAX_CALLS, MAX_ENDS, PART_BYTES, WINDOW

MIB = 2**20
SMALL = 4096
"""Room for what is not read."""
FILE_BYTES = 8 * MIB
INTERRUPT = {"op": "shell.interrupt", "name": "main"}
"""The cheapest call there is: nothing runs that it could interrupt."""


@pytest.fixture
def patience(request: pytest.FixtureRequest) -> Patience:
    return Patience(slow_s=0.3) if "impatient" in request.fixturenames else Patience()


@pytest.fixture
def impatient() -> None:
    """Asks for a service that cuts slow readers off soon."""


def other_side(server: SandboxServer, is_it: Callable[[Connection], bool]) -> Connection:
    """The service's end of a connection."""
    [found] = [connection for connection in server.connections if is_it(connection)]
    return found


async def works(remote: RemoteSandboxes) -> None:
    """Others are served."""
    async with asyncio.timeout(10):
        async with await remote.start(PLAIN, an_owner()) as sandbox:
            assert (await sandbox.exec("echo hi", timeout_s=10)).stdout == b"hi\n"


async def is_gone(server: SandboxServer) -> None:
    async def nothing_is_left() -> bool:
        return await server.node.owned() == []

    await wait_until(nothing_is_left, "its sandbox has ended")


async def test_an_unknown_operation_is_answered_and_the_connection_goes_on(remote: RemoteSandboxes, place: Path) -> None:
    """A worker that is newer than its service hears it, and keeps its sandbox."""
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        for number, op in enumerate(("fly", "", "__class__", "exec ", ["exec"], 7, {"a": 1}), start=2):
            raw.send({"id": number, "op": op})
            answer = await raw.answer(number)
            assert answer["error"]["kind"] == "invalid"
            assert "unknown operation" in answer["error"]["text"]

        raw.send({"id": 99, "op": "list", "path": "."})

        assert (await raw.answer(99))["ok"] == []


@pytest.mark.parametrize("number", [0, -1, None, "7", 1.5, True, [1]])
async def test_a_call_without_a_number_of_its_own_ends_the_connection(server: SandboxServer, place: Path, number: object) -> None:
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        raw.send({"id": number, **INTERRUPT})

        assert "expected a positive number that no running call has" in await raw.refusal()

    await is_gone(server)


async def test_a_number_twice_at_once_ends_the_connection(server: SandboxServer, place: Path) -> None:
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        wait = {"id": 5, "op": "exec", "command": "sleep 60", "stdin": b"", "cwd": "", "timeout_s": 60, "max_output_bytes": 10}
        raw.send(wait)
        raw.send(wait)

        assert "expected a positive number that no running call has" in await raw.refusal()

    await is_gone(server)


@pytest.mark.parametrize("what", [[], {}, "x", None, 1.5, b"1", True])
async def test_a_cancel_of_what_is_no_number_ends_the_connection_in_good_order(server: SandboxServer, place: Path, what: object) -> None:
    """A list can be looked up in no table: that was a fault in the loop of the service, and no word to the peer."""
    async with peer(place / "run") as raw:
        raw.send({"cancel": what})

        assert "expected the number of a call" in await raw.refusal()


async def test_a_call_that_is_cancelled_in_the_same_breath_is_answered(server: SandboxServer, place: Path) -> None:
    """Its task had not taken a step, so it never took one: no answer, and its place among the calls at once was lost for good."""
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        for number in range(2, MAX_CALLS + MAX_ENDS + 10):
            raw.send_bytes(bytes_of({"id": number, **INTERRUPT}, {"cancel": number}))
            answer = await raw.answer(number)
            assert answer["error"]["kind"] == "cancelled"

        raw.send({"id": 5000, **INTERRUPT})

        assert await raw.answer(5000) == {"id": 5000, "ok": None}


async def test_a_cancel_of_a_call_that_never_came_is_answered(server: SandboxServer, place: Path) -> None:
    async with peer(place / "run") as raw:
        raw.send({"cancel": 7})

        assert (await raw.answer(7))["error"]["kind"] == "cancelled"


async def test_thousands_of_calls_on_one_connection(remote: RemoteSandboxes) -> None:
    async with await remote.start(PLAIN, an_owner()) as sandbox:
        for _ in range(3000):
            await sandbox.shell().interrupt()

        assert (await sandbox.exec("echo hi", timeout_s=10)).stdout == b"hi\n"


async def test_who_asks_for_a_thousand_things_at_once_keeps_his_sandbox(remote: RemoteSandboxes) -> None:
    """The service takes 256 calls at once of one connection, and a peer with more for broken: a worker waits for its own."""
    async with await remote.start(PLAIN, an_owner()) as sandbox:
        for _ in range(3):
            answers = await asyncio.gather(*(sandbox.shell().send("x") for _ in range(1000)))
            assert answers == [False] * 1000


async def test_stopping_does_not_wait_for_calls_that_fill_the_connection(remote: RemoteSandboxes) -> None:
    sandbox = await remote.start(PLAIN, an_owner())
    calls = [asyncio.create_task(sandbox.exec("sleep 60", timeout_s=60)) for _ in range(MAX_CALLS + 20)]
    await asyncio.sleep(0)

    async with asyncio.timeout(20):
        await sandbox.kill()

    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {SandboxGone}


async def test_who_runs_more_at_once_than_is_agreed_is_cut_off(server: SandboxServer, remote: RemoteSandboxes, place: Path) -> None:
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        call = {"op": "start", "spec": PLAIN, "owner": an_owner()}
        raw.send_bytes(bytes_of(*({"id": number, **call} for number in range(2, MAX_CALLS + MAX_ENDS + 3))))

        assert "calls at once" in await raw.refusal()

    await is_gone(server)
    await works(remote)


async def a_big_file(raw: RawPeer, remote: RemoteSandboxes) -> None:
    """Makes one in the sandbox of a raw peer, and asks for it."""
    await raw.start(PLAIN, an_owner())
    command = f"head -c {FILE_BYTES} /dev/zero >big"
    raw.send({"id": 2, "op": "exec", "command": command, "stdin": b"", "cwd": "", "timeout_s": 30, "max_output_bytes": 10})
    assert "ok" in await raw.answer(2)
    raw.send({"id": 3, "op": "read_file", "path": "big", "max_bytes": FILE_BYTES})


async def test_a_slow_reader_of_a_big_answer_has_little_kept_for_him(server: SandboxServer, remote: RemoteSandboxes, place: Path) -> None:
    """It is given out in parts, each when the one before was taken; others are served meanwhile."""
    async with peer(place / "run", receive_bytes=SMALL) as raw:
        await a_big_file(raw, remote)
        connection = other_side(server, lambda each: each.worker.boot == "raw")
        await wait_until(lambda: connection.unsent_bytes > PART_BYTES // 2, "the answer has begun")

        await works(remote)

        assert connection.unsent_bytes < 2 * PART_BYTES
        got = 0
        while got < FILE_BYTES:
            message = await raw.next()
            assert message is not None
            got += len(message["part"])
            assert connection.unsent_bytes < 2 * PART_BYTES


async def test_a_small_answer_does_not_wait_behind_a_big_one(server: SandboxServer, remote: RemoteSandboxes, place: Path) -> None:
    async with peer(place / "run", receive_bytes=SMALL) as raw:
        await a_big_file(raw, remote)
        first = await raw.next()
        raw.send({"id": 4, **INTERRUPT})

        seen = [first]
        while seen[-1] is not None and seen[-1].get("id") != 4:
            seen.append(await raw.next())

        assert len(seen) < 1 + FILE_BYTES // PART_BYTES


async def test_who_never_reads_is_cut_off_and_his_sandbox_ends(
    server: SandboxServer, remote: RemoteSandboxes, place: Path, impatient: None
) -> None:
    async with peer(place / "run", receive_bytes=SMALL) as raw:
        await a_big_file(raw, remote)

        await is_gone(server)

    await works(remote)


async def test_who_sends_calls_and_never_reads_is_cut_off(
    server: SandboxServer, remote: RemoteSandboxes, place: Path, impatient: None
) -> None:
    """What is kept for him is bounded at any time."""
    async with peer(place / "run", receive_bytes=SMALL) as raw:
        await raw.start(PLAIN, an_owner())
        connection = other_side(server, lambda each: each.worker.boot == "raw")
        number = 1
        most = 0
        while connection in server.connections:
            number += 1
            raw.send({"id": number, "op": "x" * 1000})  # each answer names it
            await asyncio.sleep(0)
            most = max(most, connection.unsent_bytes)

        assert number > 100
        assert most < MAX_UNSENT_BYTES + PART_BYTES

    await is_gone(server)
    await works(remote)


async def test_chunks_beyond_the_window_end_the_connection(server: SandboxServer, place: Path) -> None:
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        call = {"id": 2, "op": "upload", "folder": ".", "max_bytes": 100}
        raw.send_bytes(bytes_of(call, *({"id": 2, "chunk": b"x"} for _ in range(WINDOW + 1))))

        assert f"more than {WINDOW} chunks" in await raw.refusal()

    await is_gone(server)


async def test_ends_without_end_are_one(server: SandboxServer, place: Path) -> None:
    """Each was put by for an upload that had not begun."""
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        raw.send_bytes(bytes_of({"id": 2, "op": "upload", "folder": ".", "max_bytes": 100}, *({"id": 2, "end": 1} for _ in range(5000))))

        answer = await raw.answer(2)

        assert answer["error"]["fields"]["trouble"] == "bad_archive"
        raw.send({"id": 3, **INTERRUPT})
        assert await raw.answer(3) == {"id": 3, "ok": None}


async def test_parts_of_calls_that_have_ended_mean_nothing(server: SandboxServer, place: Path) -> None:
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner())
        for message in ({"id": 9, "chunk": b"x"}, {"id": 9, "end": 1}, {"id": 9, "took": 1}, {"id": -4, "chunk": 7}, {"id": 9}):
            raw.send(message)

        raw.send({"id": 3, **INTERRUPT})

        assert await raw.answer(3) == {"id": 3, "ok": None}


async def test_a_sandbox_is_asked_for_once_a_connection(server: SandboxServer, remote: RemoteSandboxes, place: Path) -> None:
    async with peer(place / "run") as raw:
        await raw.start(PLAIN, an_owner("a"))
        raw.send({"id": 2, "op": "start", "spec": PLAIN, "owner": an_owner("b")})

        answer = await raw.answer(2)

        assert answer["error"]["kind"] == "refused"
        assert [view.job_id for view in await remote.views()] == ["a"]


@pytest.mark.parametrize("op", ["exec", "upload", "download", "read_file", "write_file", "list", "park", "shell.interrupt", "kernel.close"])
async def test_who_has_no_sandbox_is_told_so(server: SandboxServer, place: Path, op: str) -> None:
    arguments = {"command": "true", "stdin": b"", "cwd": "", "timeout_s": 1, "max_output_bytes": 1, "path": ".", "folder": "."}
    async with peer(place / "run") as raw:
        raw.send({"id": 1, "op": op, "name": "main", "max_bytes": 1, "content": b"", "executable": False, **arguments})

        assert "has no sandbox" in (await raw.answer(1))["error"]["text"]


async def test_more_than_travels_is_refused_on_the_workers_side(remote: RemoteSandboxes) -> None:
    async with await remote.start(PLAIN, an_owner()) as sandbox:
        with pytest.raises(ValueError, match="use an archive"):
            await sandbox.write_file("big", bytes(MAX_CONTENT_BYTES + 5000))

        assert await sandbox.list() == ()


async def test_what_cannot_be_sent_harms_nobody(remote: RemoteSandboxes) -> None:
    """A number too long for the wire is the caller's mistake; the call was counted as running for ever after."""
    async with await remote.start(PLAIN, an_owner()) as sandbox:
        for _ in range(MAX_CALLS + 5):
            with pytest.raises(TypeError, match="int cannot travel"):
                await sandbox.read_file("x", max_bytes=2**70)

        assert await sandbox.list() == ()


async def test_whoever_waits_is_told_when_the_connection_ends(server: SandboxServer, remote: RemoteSandboxes) -> None:
    sandbox = await remote.start(PLAIN, an_owner())
    waits: list[Awaitable[object]] = [sandbox.exec("sleep 60", timeout_s=60) for _ in range(MAX_CALLS + 20)]
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    connection = other_side(server, lambda each: each.attachment is not None)
    await wait_until(lambda: server.node.attached, "it is attached")
    await asyncio.sleep(0)

    connection.cut()

    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {SandboxTaken}
    await is_gone(server)
