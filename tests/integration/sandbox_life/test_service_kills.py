"""The node's service is killed at each step that a sandbox takes as it comes up and goes, and in the middle of tidying up after that."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.failpoints import FAILPOINT
from tests.integration.sandbox_life.killed_nodes import Node, a_node

COMING_UP = ("node_nameless", "node_named", "node_leased", "node_held", "node_holder_noted", "node_walled")
GOING = ("node_trashed", "node_sockets_left")
SERVICE_POINTS = (*COMING_UP, *GOING)

pytestmark = pytest.mark.timeout(180)


async def test_a_service_killed_at_any_step_of_a_start_leaves_nothing(kind_name: str, place: Path) -> None:
    """Its worker is told, what it had begun ends with it, and the next service removes the rest before it serves."""
    async with a_node(kind_name, place) as node:
        await node.stop_service()
        for step in COMING_UP:
            await node.serve(**{FAILPOINT: step})
            worker = await node.hire()

            await node.service.ended()

            assert await node.ends(worker) == "NodeUnavailable"
            await node.is_still(f"the service was killed at {step}")
        await node.serve()
        await node.is_clean("the last kill")


@pytest.mark.parametrize("step", GOING)
async def test_a_service_killed_as_a_sandbox_goes_or_as_it_tidies_up_leaves_nothing(place: Path, step: str) -> None:
    """What goes is files by then, whatever the walls were."""
    async with a_node("process", place) as node:
        await node.stop_service()
        await node.serve(**{FAILPOINT: step})
        worker = await node.hire()
        await node.service.ended()  # as the worker stops its sandbox
        assert await node.ends(worker) == "ends", "a stop that was interrupted is made up for by the next service"

        await leave_one(node)
        await node.begin_service(**{FAILPOINT: step})
        await node.service.ended()  # as it tidies up, before it serves

        await node.serve()
        await node.is_clean(f"the service was killed at {step}")


async def leave_one(node: Node) -> None:
    """A service that is killed while a sandbox runs."""
    await node.serve()
    worker = await node.hire("runs")
    await node.reaches(worker, "runs")
    await node.kill(worker, ("service", "worker"))
