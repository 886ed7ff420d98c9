"""The tasks that a demo can show: how large a step of each is, and what a person is told of it.

Problems are the task's own samples; what the scripted model says on them is made of their references (`ops/tasks/scripts`), right and wrong
ones, so that groups are informative. Sizes are for a minute on two cores: sandboxes and tests are real and run here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ops.tasks.rows import read_rows
from workers.handlers.base import TaskHandler
from workers.handlers.registry import BUILT_IN
from workers.handlers.task_data import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTask:
    """One of them."""

    name: str
    asks: str
    """What the step asks for, with places for `groups` and `n`."""
    groups: int = 4
    n: int = 4
    slots: int = 16
    max_turns: int = 8
    max_tokens: int = 1200
    """Of one turn: what is longest in a script, its thought included."""
    max_sampled_tokens: int = 6000
    takes: str = "about half a minute on two free cores"
    options: Mapping[str, Any] = field(default_factory=dict)  # of the task, as JSON
    pace: tuple[str, ...] = ()
    """How the scripted model speaks, in words of its command line."""

    def handler(self) -> TaskHandler:
        """The task's handler, not opened: rows and references can be read from it, nothing can be graded."""
        return BUILT_IN[self.name]()

    async def check(self) -> None:
        """Opens the handler and closes it, as workers will.

        Raises:
            InvalidRequest: a package is missing here; says which, and what brings it.
        """
        handler = self.handler()
        await handler.open()
        await handler.close()

    def rows(self) -> tuple[Row, ...]:
        """The problems."""
        return read_rows(self.handler(), None).rows


_ALL = (
    DemoTask(
        name="math",
        asks="{groups} informative groups of {n} rollouts on math problems with a Python tool",
        groups=8,
        n=8,
        slots=48,
        max_turns=5,
        max_tokens=400,
        max_sampled_tokens=1200,
        pace=("--tool-rate", "0.25"),
    ),
    DemoTask(name="stem", asks="{groups} informative groups of {n} rollouts on questions of science", groups=6, n=8, slots=32),
    DemoTask(
        name="code",
        asks="{groups} informative groups of {n} rollouts on programs that hidden tests judge, each test a process in a sandbox",
        groups=2,
        takes="about a minute on two free cores",
    ),
    DemoTask(
        name="swe",
        asks="{groups} informative groups of {n} rollouts on small repositories with a real bug, judged by their tests in a fresh sandbox",
        groups=2,
        slots=8,
        max_turns=12,
        max_tokens=2000,
        max_sampled_tokens=16_000,
        takes="about a minute on two free cores",
    ),
    DemoTask(
        name="reasoning_gym", asks="{groups} informative groups of {n} rollouts on puzzles with a scorer each", groups=6, n=8, slots=32
    ),
    DemoTask(
        name="gym",
        asks="{groups} informative groups of {n} episodes in a small text environment, each judged by its replay",
        groups=6,
        n=8,
        slots=32,
        max_turns=12,
    ),
)
TASKS: Mapping[str, DemoTask] = {task.name: task for task in _ALL if task.name in BUILT_IN}
"""By name."""
