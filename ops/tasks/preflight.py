"""Preflight: before a data set is trained on, the task's own grader judges what must be right and what must be wrong.

Of each row its reference answer (`gold`) must score 1 and an empty one 0, by the handler's real `evaluate`, in real sandboxes where it has
some. A row whose reference scores less is not solvable as it is graded; one whose empty answer scores more pays for nothing.

Invariants
    - A grader that raises is a finding about the row, with what it said; a node that can make no sandbox at all ends the whole preflight.
    - A row without a reference is told, and is no failure: its empty answer is graded all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ops.sandbox_service import ServiceNotStarted
from ops.tasks.foreground import Foreground
from ops.tasks.rows import spec_of
from pipeline.messages import Grade, JobSpec, JobTemplate, Stage, Trajectory
from workers.handlers.base import NoSandboxes, TaskHandler
from workers.handlers.task_data import Row
from workers.sandbox.errors import NodeUnavailable
from workers.stages.failures import described, failure_of

MOST_REASON_CHARS = 600
MOST_WARNINGS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one answer got."""

    reward: float | None
    """None = it was not graded."""
    why: str
    """What the grader said, or what broke it."""
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    """What the grader noticed of the row or its image (`warnings` in a grade's details), and that it calls the answer tampering."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRow:
    """One row."""

    row: str
    gold: Score | None
    """None = the row holds no reference."""
    empty: Score

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with it, in words."""
        found = []
        if self.gold is not None and self.gold.reward != 1.0:
            found.append(f"the reference scores {_shown(self.gold)}, expected 1")
        if self.empty.reward != 0.0:
            found.append(f"an empty answer scores {_shown(self.empty)}, expected 0")
        return tuple(found)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is no fault of the row, and should be known before it is trained on."""
        return self.gold.warnings if self.gold is not None else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What was found."""

    task: str
    checked: tuple[CheckedRow, ...]

    @property
    def failed(self) -> tuple[CheckedRow, ...]:
        return tuple(row for row in self.checked if row.faults)

    @property
    def warned(self) -> tuple[CheckedRow, ...]:
        return tuple(row for row in self.checked if row.warnings)

    @property
    def without_gold(self) -> tuple[CheckedRow, ...]:
        return tuple(row for row in self.checked if row.gold is None)

    @property
    def passed(self) -> bool:
        return not self.failed


async def preflight(
    stages: Foreground,
    task: str,
    template: JobTemplate,
    rows: Sequence[Row],
    *,
    jobs: int,
    told: Callable[[CheckedRow], None] = lambda row: None,
) -> Preflight:
    """Checks rows.

    Args:
        jobs: rows at a time.
        told: of each row as it is checked, in the order of their ends.

    Raises:
        InvalidRequest: nobody brings the task.
        ServiceNotStarted, NodeUnavailable, NoSandboxes: this node makes no sandboxes.
    """
    handler = await stages.handler(task)
    places = asyncio.Semaphore(jobs)
    checked: list[CheckedRow | None] = [None] * len(rows)

    async def check(number: int, row: Row) -> None:
        async with places:
            found = checked[number] = await _check(stages, handler, template, row, number)
        told(found)

    try:
        async with asyncio.TaskGroup() as group:
            for number, row in enumerate(rows):
                group.create_task(check(number, row), name=f"preflight {row.get('id')}")
    except BaseExceptionGroup as raised:
        raise raised.exceptions[0] from raised
    return Preflight(task=task, checked=tuple(row for row in checked if row is not None))


async def _check(stages: Foreground, handler: TaskHandler, template: JobTemplate, row: Row, number: int) -> CheckedRow:
    name = str(row.get("id", number))
    gold: Score | None
    try:
        spec = spec_of(template, row, number)
        reference = handler.gold(spec)
        nothing = handler.empty(spec)
    except Exception as error:  # noqa: BLE001  # whatever a handler makes of a row is a finding about it
        broken = Score(reward=None, why=_broken(error))
        return CheckedRow(row=name, gold=broken, empty=broken)
    gold = await _score(stages, spec, reference) if reference is not None else None
    return CheckedRow(row=name, gold=gold, empty=await _score(stages, _again(spec), nothing))


async def _score(stages: Foreground, spec: JobSpec, trajectory: Trajectory) -> Score:
    try:
        grade = (await stages.evaluate(spec, trajectory)).grade
    except (ServiceNotStarted, NodeUnavailable, NoSandboxes):
        raise
    except Exception as error:  # noqa: BLE001  # whatever a grader raises is a finding about the row
        return Score(reward=None, why=_broken(error))
    said = " · ".join(f"{name}: {value}" for name, value in grade.details.items() if name != "sandbox")
    return Score(reward=grade.reward, why=said[:MOST_REASON_CHARS], seconds=grade.seconds, warnings=_warnings(grade))


def _warnings(grade: Grade) -> tuple[str, ...]:
    found: list[object] = []
    for name in ("warnings", "tampering"):
        told = grade.details.get(name)
        if isinstance(told, list | tuple):
            found += (f"the reference is called tampering: {each}" if name == "tampering" else each for each in told)
    return tuple(str(each)[:MOST_REASON_CHARS] for each in found[:MOST_WARNINGS])


def _again(spec: JobSpec) -> JobSpec:
    """A later attempt of the same job: its sandboxes follow those of the one before."""
    return replace(spec, attempt=spec.attempt + 1)


def _broken(error: Exception) -> str:
    return described(failure_of(Stage.EVAL, error))[:MOST_REASON_CHARS]


def _shown(score: Score) -> str:
    return f"{score.reward:g}" if score.reward is not None else "nothing: its grading broke"
