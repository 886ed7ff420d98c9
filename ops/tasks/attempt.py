"""One job in the foreground, from INIT to its grade."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ops.tasks.foreground import Foreground
from pipeline.messages import JobSpec, Trajectory
from workers.agent.trajectory import TurnDelta
from workers.llm.backend import Model
from workers.llm.tokenizer import Tokenizer, load
from workers.stages.judging import Judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of it."""

    trajectory: Trajectory
    judged: Judged


async def attempt(
    stages: Foreground,
    spec: JobSpec,
    model: Model,
    *,
    journal: Callable[[TurnDelta], Awaitable[None]],
    ran: Callable[[Trajectory], None] = lambda trajectory: None,
) -> Attempt:
    """Init, run, evaluate. What a handler raises flies.

    Args:
        journal: told each finished turn.
        ran: told the trajectory before it is judged.
    """
    environment = await stages.init(spec)
    trajectory = await stages.run(spec, environment, model, journal=journal)
    ran(trajectory)
    return Attempt(trajectory=trajectory, judged=await stages.judge(spec, trajectory, environment))


def tokenizer_of(spec: JobSpec) -> Tokenizer | None:
    """What the job's ids are read with; None when its file is not here: they are shown as ids then."""
    try:
        return load(spec.template.chat.tokenizer)
    except (OSError, ValueError):
        return None
