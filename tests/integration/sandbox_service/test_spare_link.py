"""The connection that a worker keeps for its next sandbox: used once, none for who starts nothing, and no word of a service that ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.testing.wait import wait_until
from tests.integration.sandbox_life.nodes import an_owner, settings
from tests.integration.sandbox_service.nodes import PLAIN, node_of
from workers.sandbox import NodeUnavailable
from workers.sandbox.service import RemoteSandboxes, SandboxServer, serving_here


async def test_there_is_none_until_a_sandbox_was_started(server: SandboxServer, remote: RemoteSandboxes) -> None:
    """Who only asks what a node has (`rollstream sandbox list`, the node's agent) keeps one connection, not two."""
    await remote.views()
    await remote.spare.settle()

    assert remote.spare.ready is None
    assert len(server.connections) == 1


async def test_it_becomes_the_connection_of_the_next_sandbox_and_of_no_other(server: SandboxServer, remote: RemoteSandboxes) -> None:
    first = await remote.start(PLAIN, an_owner())
    await remote.spare.settle()
    spare = remote.spare.ready
    assert spare is not None

    second = await remote.start(PLAIN, an_owner())
    third = await remote.start(PLAIN, an_owner())

    assert second._link is spare
    assert third._link is not spare
    await first.kill()
    assert (await second.exec("echo hi", timeout_s=10)).stdout == b"hi\n"
    spare.close()  # the second sandbox ends with it, the third does not
    await second.wait_gone()
    assert (await third.exec("echo hi", timeout_s=10)).stdout == b"hi\n"
    await third.stop()


async def test_one_whose_service_has_ended_is_not_used(place: Path) -> None:
    """A worker that was given it would hear of a lost sandbox that it never had, and count it as a loss of the job."""
    async with serving_here(node_of(place), place / "run", settings=settings()) as server, RemoteSandboxes(place / "run") as remote:
        [control] = server.connections
        await (await remote.start(PLAIN, an_owner())).kill()
        await remote.spare.settle()
        assert remote.spare.ready is not None
        for connection in list(server.connections):
            if connection.attachment is None and connection is not control:
                connection.close()
        await wait_until(lambda: remote.spare.ready is None, "its end was heard")

        sandbox = await remote.start(PLAIN, an_owner())  # over one that was made for it
        await sandbox.kill()


async def test_a_start_after_the_end_of_the_service_says_that_it_is_not_there(place: Path) -> None:
    async with serving_here(node_of(place), place / "run", settings=settings()) as server:
        remote = await RemoteSandboxes(place / "run").__aenter__()
        await (await remote.start(PLAIN, an_owner())).kill()
        await remote.spare.settle()
        server.stop_listening()
        for connection in list(server.connections):
            connection.close()
        await remote.lost

        await wait_until(lambda: remote.spare.ready is None, "the service's end was heard")
        with pytest.raises(NodeUnavailable):
            await remote.start(PLAIN, an_owner())
        await remote.close()


async def test_it_ends_with_who_keeps_it(server: SandboxServer, place: Path) -> None:
    async with RemoteSandboxes(place / "run") as remote:
        await (await remote.start(PLAIN, an_owner())).kill()
        await remote.spare.settle()
        assert remote.spare.ready is not None

    await wait_until(lambda: not server.connections, "all its connections have ended")
