"""A holder, or an execution server, that ends over a frame of ours which it has not read is heard of, on either event loop of a worker.

The kernel leaves an error on our end of the socket then. Its last words come before that error, and uvloop, which watches with libuv, calls
once for both. Two ends that are ordered at once leave such a frame: of a service whose launcher was killed, and of workers that left it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.integration.sandbox_inside.servers import FalseServer
from workers.sandbox.inside.connection import ServerConnection
from workers.sandbox.inside.guest import frames
from workers.sandbox.local.holder_client import Holder

HEARD_S = 10.0

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """An event loop, from its start to its end."""
    found: Run = request.param
    return found


def block_until_ended(pid: int) -> None:
    """In the event loop's own thread: this is what keeps it busy."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_holder_that_is_told_twice_to_end_is_heard_of_by_a_busy_service(run: Run) -> None:
    """By a signal, as from a sweep, and by a frame that it does not read any more. What it says last and its end come while the loop is
    busy: the service waited ten seconds for an end that had come, and left the sandbox's folder to the next one."""

    async def end_twice() -> None:
        holder = await Holder.launch()
        identity = holder.identity
        assert identity is not None
        os.kill(identity.pid, signal.SIGSTOP)
        os.kill(identity.pid, signal.SIGTERM)
        holder.begin_end(0.0)
        os.kill(identity.pid, signal.SIGCONT)
        block_until_ended(identity.pid)

        async with asyncio.timeout(HEARD_S):
            await holder.wait_ended()

        assert holder.left_nothing

    run(end_twice())


def test_an_execution_server_that_ends_after_an_answer_is_heard_of_by_a_busy_worker(run: Run) -> None:
    """The worker would take it for one that thinks, until its patience ends."""

    async def end_after_answer() -> None:
        ours, theirs = socket.socketpair()
        broken: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        connection = ServerConnection("sandbox", ours, broken.set_result, last_words_s=0.0)
        greeting = asyncio.create_task(connection.greet(bytes(32), limits={}, seccomp=b""))
        await asyncio.sleep(0)  # it is sent, and not read
        with FalseServer(theirs) as server:
            server.control.sendall(frames.reply(frames.READY, 0, frames.VERSION))
        await greeting

        async with asyncio.timeout(HEARD_S):
            assert await broken == "its execution server ended"

    run(end_after_answer())
