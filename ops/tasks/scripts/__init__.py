"""What the scripted model is to say on a task's rows: what its references say, and what members that fail say in their place.

    math            made up by the policy around the answer: thoughts, a call of `python`, a box
    code, swe       scripts with tool calls (`programs.py`, `repairs.py`)
    gym             the actions of the solution, one a turn (`episodes.py`)
    any other task  one turn that says what the reference says, or something like it (`answers.py`)

A question is the message by which the row is asked, as the handler writes it, so that it is found in the prompt whatever stands around it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ops.tasks.rows import spec_of
from ops.tasks.scripts.answers import BOX, answered
from pipeline.messages import JobSpec, JobTemplate, Trajectory
from workers.handlers.agent_handler import AgentHandler
from workers.handlers.base import TaskHandler
from workers.handlers.task_data import Row
from workers.llm.scripted import Problem
from workers.llm.scripted.acts import Script, script_as_json

Scripts = Callable[[JobSpec, Trajectory], tuple[Script, Sequence[Script]]]
"""The right script of a job and some that fail, from its reference."""


def scripted_problems(handler: TaskHandler, template: JobTemplate, rows: Sequence[Row]) -> list[Problem]:
    """What the scripted model knows of these rows. Rows without a reference are left out: it answers them wrongly.

    Raises:
        InvalidRequest: a row is none of the task's.
    """
    if not isinstance(handler, AgentHandler):
        return []
    found = []
    for row in rows:
        spec = spec_of(template, row)
        gold = handler.gold(spec)
        question = next((message.content for message in reversed(handler.messages(spec)) if message.role == "user"), "").strip()
        if gold is None or not question:
            continue
        found.append(_problem(handler.name, question, spec, gold))
    return found


def write_problems(path: Path, problems: Sequence[Problem]) -> None:
    """A file for `python -m workers.llm.scripted --problems`."""
    lines = [
        json.dumps(
            {
                "question": problem.question,
                "answer": problem.answer,
                "right": script_as_json(problem.right),
                "wrong": [script_as_json(script) for script in problem.wrong],
            }
        )
        for problem in problems
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _problem(task: str, question: str, spec: JobSpec, gold: Trajectory) -> Problem:
    if task == "math":
        box = BOX.search(gold.answer)
        return Problem(question, box[1] if box else gold.answer)
    right, wrong = _scripts_of(task)(spec, gold)
    return Problem(question, gold.answer, right, tuple(wrong))


def _programmed(spec: JobSpec, gold: Trajectory) -> tuple[Script, Sequence[Script]]:
    from ops.tasks.scripts.programs import programmed

    return programmed(spec, gold)


def _repaired(spec: JobSpec, gold: Trajectory) -> tuple[Script, Sequence[Script]]:
    from ops.tasks.scripts.repairs import repaired

    return repaired(spec, gold)


def _played(spec: JobSpec, gold: Trajectory) -> tuple[Script, Sequence[Script]]:
    from ops.tasks.scripts.episodes import played

    return played(spec, gold)


def _scripts_of(task: str) -> Scripts:
    own: Mapping[str, Scripts] = {"code": _programmed, "swe": _repaired, "gym": _played}
    return own.get(task, answered)


__all__ = ["scripted_problems", "write_problems"]
