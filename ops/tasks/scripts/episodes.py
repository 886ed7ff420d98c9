"""An episode played to its end, and the same with its first action done over and over."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.messages import JobSpec, Trajectory
from workers.handlers.gym.layouts import LAYOUTS, ActionIn
from workers.handlers.task_data import problem_in
from workers.llm.scripted import Act
from workers.llm.scripted.acts import Script

GIVES_UP = "I do not see how."


def played(spec: JobSpec, gold: Trajectory) -> tuple[Script, Sequence[Script]]:
    """The solution of the row, or its first action alone and then words that are none."""
    problem = problem_in(spec.prompt.data, LAYOUTS)
    actions = [_said(action, problem.action_in) for action in problem.solution or ()]
    return tuple(Act(action) for action in actions), ((Act(GIVES_UP), *(Act(action) for action in actions[:1])),)


def _said(action: str, action_in: ActionIn) -> str:
    match action_in:
        case "message":
            return action
        case "boxed":
            return rf"\boxed{{{action}}}"
        case "tag":
            return f"<action>{action}</action>"
