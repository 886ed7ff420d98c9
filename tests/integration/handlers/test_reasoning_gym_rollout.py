"""A whole rollout of `reasoning_gym` on a row that only names its puzzle."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from ops.tasks import Foreground
from ops.tasks.attempt import attempt
from tests.judged import spec_of
from workers.agent.trajectory import TurnDelta
from workers.graders.reasoning_gym import PuzzleGrader
from workers.handlers.reasoning_gym.handler import ReasoningGymHandler
from workers.handlers.registry import Handlers
from workers.llm.scripted import InProcessBackend

pytestmark = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="the extra reasoning-gym")
"""Looked for and not imported: only the graders' processes need it, and each pytest process would import it for a second."""
ROW = {"id": "g1", "dataset": "gcd", "seed": 1, "index": 0, "config": {"min_numbers": 2, "max_numbers": 2}}


async def noted(delta: TurnDelta) -> None:
    """Keeps no journal."""


async def test_the_model_is_asked_what_init_made_and_is_scored_by_it() -> None:
    spec = spec_of("reasoning_gym", ROW)
    alone = ReasoningGymHandler()
    gold, question = alone.gold(spec), alone.messages(spec)[-1].content
    assert gold is not None

    async with Handlers({"reasoning_gym": lambda: ReasoningGymHandler(PuzzleGrader(processes=1))}) as handlers:
        found = await attempt(Foreground(handlers), spec, InProcessBackend([f"I see. {gold.answer}"]), journal=noted)

    assert next(message.content for message in found.trajectory.messages if message.role == "user") == question
    assert found.judged.grade.reward == 1.0
    assert found.judged.grade.details["dataset"] == "gcd"
