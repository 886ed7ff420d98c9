"""Starts: many at once all come up, what passes is tried again, what takes too long is said, and a place is held until nothing is left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pipeline.testing.wait import wait_until
from tests.contract.sandbox.kinds import Kind
from tests.integration.sandbox_life.nodes import PLAIN, WORKER, an_owner, ignored, left, moody, settings
from workers.sandbox import ImageMissing, Isolation, NodeUnavailable, Sandbox, SandboxSpec, SandboxStartError
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.service import NodeSandboxes, RemoteSandboxes, served_here

STARTS = 64


async def test_64_starts_at_once_all_succeed(kind: Kind, place: Path) -> None:
    """Without a gate 64 walls are built at once, none is ready before any other, and all run into their limits."""
    provider = kind.open(place)
    assert isinstance(provider, LocalSandboxes)
    most = 0

    async def start_and_ask(remote: RemoteSandboxes) -> bytes:
        nonlocal most
        sandbox: Sandbox = await remote.start(kind.spec, an_owner())
        most = max(most, len([path for path in (place / "scratch").iterdir() if path.name[0] != "."]))
        said = await sandbox.exec("echo here", timeout_s=60)
        await sandbox.kill()
        return said.stdout

    async with served_here(provider, place / "run", settings=settings()) as remote:
        answers = await asyncio.gather(*(start_and_ask(remote) for _ in range(STARTS)))

    assert answers == [b"here\n"] * STARTS
    assert most >= 2
    assert left(place) == []


async def test_what_fails_for_a_moment_is_tried_again(place: Path) -> None:
    provider, backend = moody(place)
    backend.failures = 2

    async with served_here(provider, place / "run", settings=settings()) as remote, await remote.start(PLAIN, an_owner()) as sandbox:
        assert (await sandbox.exec("echo here", timeout_s=10)).stdout == b"here\n"

    assert backend.asked == 3


async def test_what_cannot_help_is_not_tried_again(place: Path) -> None:
    provider, backend = moody(place)

    async with served_here(provider, place / "run", settings=settings()) as remote:
        with pytest.raises(SandboxStartError) as raised:
            await remote.start(SandboxSpec(isolation=Isolation.ISOLATED), an_owner())

    assert not raised.value.retryable
    assert backend.asked == 0


async def test_a_start_that_takes_too_long_says_so_and_may_be_tried_again(place: Path) -> None:
    """One place, and it is taken for good: who waits is told within the limit, and leaves the line."""
    provider, _ = moody(place)
    async with provider, NodeSandboxes(provider, settings(starts=1, start_s=0.2)) as node:
        await node.gates.enter("")

        with pytest.raises(SandboxStartError, match=r"no answer within 0\.2 s; 1 starts run") as raised:
            await node.start(PLAIN, an_owner(), WORKER, ignored)

        assert raised.value.retryable
        assert not isinstance(raised.value, NodeUnavailable)
        assert node.gates.waiting == 0
        node.gates.leave("")
        assert node.gates.running == 0


async def test_a_cancelled_start_holds_its_place_until_nothing_of_it_is_left(place: Path) -> None:
    """A run is cancelled while its jobs start: were their places free at once, the next would come on top of what is still starting."""
    provider, _ = moody(place)
    async with provider, NodeSandboxes(provider, settings(starts=1)) as node:
        starting = asyncio.create_task(node.start(PLAIN, an_owner(), WORKER, ignored))
        await wait_until(lambda: left(place), "its folder is there")
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert node.gates.running == 1  # it has begun, and is not undone within a step of the loop

        await node.settle()

        assert node.gates.running == 0
        assert left(place) == []


async def test_a_start_that_waited_while_the_node_began_to_stop_starts_nothing(place: Path) -> None:
    """It was let into the line before the stop, and its turn comes after everything was ended."""
    provider, backend = moody(place)
    async with provider, NodeSandboxes(provider, settings(starts=1)) as node:
        await node.gates.enter("")
        starting = asyncio.create_task(node.start(PLAIN, an_owner(), WORKER, ignored))
        await wait_until(lambda: node.gates.waiting, "it stands in the line")
        await node.drain(0.0)

        node.gates.leave("")

        with pytest.raises(NodeUnavailable, match="stops"):
            await starting
    assert backend.asked == 0


async def test_five_failed_starts_in_a_row_degrade_the_node_until_it_is_well(place: Path) -> None:
    provider, backend = moody(place)
    backend.broken = "no space left"
    told: list[str] = []
    async with served_here(provider, place / "run", settings=settings()) as remote:
        remote.on_degraded(told.append)
        for _ in range(2):  # of three tries each: the node is degraded in the middle of the second one
            with pytest.raises(SandboxStartError):
                await remote.start(PLAIN, an_owner())
        await wait_until(lambda: told, "the worker was told")
        assert "5 starts in a row failed" in told[0]
        assert "no space left" in told[0]

        with pytest.raises(NodeUnavailable, match="degraded: 5 starts in a row failed"):
            await remote.start(PLAIN, an_owner())
        backend.broken = ""
        await wait_until(lambda: not remote.degraded, "it is well again by itself", timeout_s=20)

        assert told[-1] == ""
        await (await remote.start(PLAIN, an_owner())).stop()


async def test_who_connects_to_a_degraded_node_is_told(place: Path) -> None:
    provider, _ = moody(place)
    async with provider, NodeSandboxes(provider, settings()) as node:
        node.health.not_proven("id", "process 7 does not end")

        with pytest.raises(NodeUnavailable, match="process 7 does not end"):
            await node.start(PLAIN, an_owner(), WORKER, ignored)
        node.health.proven("id")

        await (await node.start(PLAIN, an_owner(), WORKER, ignored)).sandbox.kill()


async def test_an_image_that_is_missing_degrades_nobody(place: Path) -> None:
    """A run that names an image nobody brought would take the node from all other runs."""
    provider, _ = moody(place)
    async with provider, NodeSandboxes(provider, settings()) as node:
        for _ in range(6):
            with pytest.raises((ImageMissing, SandboxStartError)):
                await node.start(SandboxSpec(isolation=Isolation.NONE, image="nowhere"), an_owner(), WORKER, ignored)

        assert node.health.degraded == ""
