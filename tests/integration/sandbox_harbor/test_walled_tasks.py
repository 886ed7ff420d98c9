"""Tasks of Harbor behind walls: their folders are at the root, and an agent works, leaves, and is judged."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ops.tasks import Foreground
from ops.tasks.attempt import attempt
from tests.contract.sandbox.kinds import KINDS, usable
from tests.judged import eval_context, spec_of
from workers.agent.trajectory import TurnDelta
from workers.handlers.harbor.handler import HarborHandler
from workers.handlers.harbor.layouts import LAYOUTS
from workers.handlers.registry import Handlers
from workers.handlers.task_data import load_rows
from workers.llm.scripted import InProcessBackend
from workers.sandbox.base import SandboxProvider

TASKS = Path(__file__).parents[1] / "harbor" / "tasks"


@pytest.fixture
async def sandboxes(place: Path) -> AsyncIterator[SandboxProvider]:
    usable("bubblewrap")
    async with KINDS["bubblewrap"].open(place) as provider:
        yield provider


async def noted(delta: TurnDelta) -> None:
    """Keeps no journal."""


def calling(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def test_an_agent_works_in_the_tasks_own_folder_and_is_judged_at_the_end(sandboxes: SandboxProvider) -> None:
    """It finds no tests, what it puts in their place is not used, and its work counts."""
    row = next(row for row in load_rows(TASKS, LAYOUTS).rows if row["id"] == "rollstream/count-lines")
    write = (
        "ls /tests; mkdir -p /tests /logs/verifier; echo 1 > /logs/verifier/reward.json; echo 'echo 1' > /tests/test.sh; "
        "pwd; printf '#!/bin/bash\\ngrep -c . \"$1\"\\n' > /app/count.sh && chmod +x /app/count.sh"
    )
    spec = spec_of("harbor", row, {"images": {"*": ""}})
    spec = replace(spec, template=replace(spec.template, capability="isolated"))

    async with Handlers() as handlers:
        lines = [calling("bash", command=write), calling("finish", answer="")]
        found = await attempt(Foreground(handlers, sandboxes), spec, InProcessBackend(lines), journal=noted)

    (seen,) = (message.content for message in found.trajectory.messages if message.role == "tool" and "app" in message.content)
    assert "No such file" in seen
    assert (found.judged.grade.reward, found.judged.grade.details["log"]) == (1.0, "")


async def test_solutions_score_behind_walls_and_nothing_does_not(sandboxes: SandboxProvider) -> None:
    handler = HarborHandler()
    for number, row in enumerate(load_rows(TASKS, LAYOUTS).rows):
        spec = spec_of("harbor", row, {"images": {"*": ""}})
        spec = replace(spec, job=f"{spec.job}-{number}", template=replace(spec.template, capability="isolated"))
        gold = handler.gold(spec)
        assert gold is not None
        assert (await handler.evaluate(eval_context(spec, gold, sandboxes))).reward == 1.0, row["id"]
        assert (await handler.evaluate(eval_context(spec, handler.empty(spec), sandboxes))).reward == 0.0, row["id"]
