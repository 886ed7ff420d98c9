"""Kills in the middle of a start, at a place where it is held fast: the command of the walls about to run, or PID 1 that has not said that
they stand. Nothing is let go on afterwards: what hangs there hangs for good, as on a file system that does not answer.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.testing.wait import wait_until
from tests.contract.sandbox.kinds import Kind
from tests.integration.sandbox_life.killed_nodes import ROUNDS, a_node

GATES = ("command", "pid1")

pytestmark = pytest.mark.timeout(120 + 60 * ROUNDS)


class Gate:
    """A place in the middle of every start."""

    def __init__(self, where: str, place: Path) -> None:
        self.folder = place / where
        self.folder.mkdir()
        os.mkfifo(self.folder / "go")
        self.name = f"{where}:{self.folder}"

    async def reached(self) -> None:
        await wait_until((self.folder / "reached").exists, "a start is held", timeout_s=30)

    def close(self) -> None:
        """For the next start."""
        (self.folder / "reached").unlink()


@pytest.fixture(params=GATES)
def gate(request: pytest.FixtureRequest, kind: Kind, place: Path) -> Gate:
    if not kind.walls:
        pytest.skip("there are no walls")
    return Gate(request.param, place)


async def test_a_start_that_hangs_ends_with_its_worker(kind_name: str, place: Path, gate: Gate) -> None:
    """The service waited for the walls of a start whose worker was gone, for a minute, and only then undid it."""
    async with a_node(kind_name, place, gate=gate.name) as node:
        for _ in range(ROUNDS):
            worker = await node.hire()
            await gate.reached()

            await node.kill(worker, ("worker",))

            await node.is_clean("the worker was killed")
            gate.close()


@pytest.mark.parametrize("victims", ["service", "worker service below"])
async def test_a_start_that_hangs_ends_with_its_service(kind_name: str, place: Path, gate: Gate, victims: str) -> None:
    """By the holder, which sees it go; or, where that was killed in the same blow, by the next service."""
    async with a_node(kind_name, place, gate=gate.name) as node:
        for number in range(ROUNDS):
            if number:
                await node.serve(gate=gate.name)
            worker = await node.hire()
            await gate.reached()

            await node.kill(worker, tuple(victims.split()))

            if victims == "service":
                await node.is_still("the service was killed")
            await node.serve()
            await node.is_clean(f"{victims} were killed")
            await node.stop_service()
            gate.close()


async def test_a_start_that_hangs_ends_with_its_holder(kind_name: str, place: Path, gate: Gate) -> None:
    """Its worker is told; the start is tried again, and hangs again."""
    async with a_node(kind_name, place, gate=gate.name) as node:
        for _ in range(ROUNDS):
            worker = await node.hire()
            await gate.reached()

            await node.kill(worker, ("worker", "below"))

            await node.is_clean("the holder was killed")
            gate.close()
