"""Whatever of a node is killed, and whenever: after the janitor's next round no process, mount, socket, FUSE helper or folder of a sandbox
is left (`tests/sandbox_leftovers.py` says how that is looked for).

Each test goes through the moments of a worker's life, in all of which there is a sandbox or one is being made; the kill comes some
milliseconds after. `ROLLSTREAM_KILL_ROUNDS` is how often each moment is gone through; some of them once, where it is not set.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.sandbox.kinds import Kind
from tests.integration.sandbox_life.killed_nodes import MOMENTS, ROUNDS, Node, a_node

pytestmark = pytest.mark.timeout(60 + 60 * ROUNDS)


async def test_a_killed_worker_leaves_nothing(kind_name: str, place: Path) -> None:
    """INIT: until `parks`. RUN: from `attaches`."""
    async with a_node(kind_name, place) as node:
        for moment in chosen(node, 3):
            when = await node.chance_kill(moment, ("worker",))

            await node.is_clean(when)


@pytest.mark.parametrize("victims", ["service", "service worker"])
async def test_a_killed_service_leaves_nothing(kind_name: str, place: Path, victims: str) -> None:
    """Alone, and its workers are told; and together with them, as when a job of Slurm ends. Its sandboxes end before there is another."""
    async with a_node(kind_name, place) as node:
        for moment in chosen(node, 2):
            when = await node.chance_kill(moment, tuple(victims.split()))

            await node.is_still(when)
            await node.serve()
            await node.is_clean(when)


async def test_a_node_killed_as_a_whole_leaves_nothing(kind_name: str, place: Path) -> None:
    """Worker, service and holder, none of which sees another end: only the next service is left to tidy up."""
    async with a_node(kind_name, place) as node:
        for moment in chosen(node, 2):
            when = await node.chance_kill(moment, ("worker", "service", "below"))

            await node.serve()
            await node.is_clean(when)


@pytest.mark.parametrize("victim", ["below", "builder"])
async def test_a_killed_holder_or_builder_leaves_nothing_and_is_told(kind_name: str, kind: Kind, place: Path, victim: str) -> None:
    """All children of the service, its holders among them; or the commands that build the walls. Then the node goes on as before."""
    if victim == "builder" and not kind.walls:
        pytest.skip("there are no walls")
    async with a_node(kind_name, place) as node:
        for moment in chosen(node, 2):
            when = await node.chance_kill(moment, (victim,))

            await node.is_clean(when)
        assert await node.ends(await node.hire()) == "ends"


async def test_a_killed_pid_1_leaves_nothing_and_the_worker_is_told(kind_name: str, kind: Kind, place: Path) -> None:
    if not kind.walls:
        pytest.skip("there is no PID 1")
    async with a_node(kind_name, place) as node:
        for last in ["kernel"] * ROUNDS:
            worker = await node.hire(last)
            await node.reaches(worker, "runs")

            await node.kill(worker, ("keeper",))

            assert await node.ends(worker) == "SandboxGone"
            await node.is_clean("PID 1 was killed")


def chosen(node: Node, least: int) -> list[str]:
    """Every moment as often as is asked for; where that is once, some of them, drawn."""
    return [*MOMENTS] * ROUNDS if ROUNDS > 1 else node.chance.sample([*MOMENTS], least)
