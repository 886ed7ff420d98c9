"""Finds the handler of a task by name.

Built-in names first, then the entry-point group `rollstream.handlers` of what is installed on the worker's machine. A name from a job is
only ever looked up in these two: nothing from Redis names code to import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Self

from pipeline.errors import InvalidRequest
from pipeline.near_names import hint
from workers.handlers.base import TaskHandler

ENTRY_POINTS = "rollstream.handlers"


def _math() -> TaskHandler:
    from workers.handlers.math.handler import MathHandler

    return MathHandler()


def _stem() -> TaskHandler:
    from workers.handlers.stem.handler import StemHandler

    return StemHandler()


def _code() -> TaskHandler:
    from workers.handlers.code.handler import CodeHandler

    return CodeHandler()


def _swe() -> TaskHandler:
    from workers.handlers.swe.handler import SweHandler

    return SweHandler()


def _reasoning_gym() -> TaskHandler:
    from workers.handlers.reasoning_gym.handler import ReasoningGymHandler

    return ReasoningGymHandler()


def _gym() -> TaskHandler:
    from workers.handlers.gym.handler import GymHandler

    return GymHandler()


def _harbor() -> TaskHandler:
    from workers.handlers.harbor.handler import HarborHandler

    return HarborHandler()


BUILT_IN: Mapping[str, Callable[[], TaskHandler]] = {
    "math": _math,
    "stem": _stem,
    "code": _code,
    "swe": _swe,
    "reasoning_gym": _reasoning_gym,
    "gym": _gym,
    "harbor": _harbor,
}


class Handlers:
    """The handlers of one process, made and opened when first asked for.

    Args:
        more: handlers beside the built-in ones, by name; an application that embeds workers passes its own here.
        config: the `rollstream.toml` that handlers with settings of their own read.
    """

    def __init__(self, more: Mapping[str, Callable[[], TaskHandler]] | None = None, *, config: Path | None = None) -> None:
        self._config = config
        self._makers: dict[str, Callable[[], TaskHandler]] = {**BUILT_IN, **(more or {})}
        self._made: dict[str, TaskHandler] = {}

    def names(self) -> list[str]:
        """All that can be found, built-in ones first."""
        installed = {point.name for point in entry_points(group=ENTRY_POINTS)}
        return [*self._makers, *sorted(installed - set(self._makers))]

    async def find(self, task: str) -> TaskHandler:
        """The handler of `task`.

        Raises:
            InvalidRequest: nobody brings it.
        """
        if task not in self._made:
            maker = self._makers.get(task)
            if maker is None:
                installed = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
                if task not in installed:
                    known = sorted({*self._makers, *installed})
                    raise InvalidRequest(f"no task {task!r} is installed here; {hint(task, known)}", field="task")
                maker = installed[task].load()
            handler = maker()
            handler.config = self._config
            await handler.open()
            # two jobs may have asked at once: the first one made stays
            if self._made.setdefault(task, handler) is not handler:
                await handler.close()
        return self._made[task]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        made, self._made = self._made, {}
        for handler in made.values():
            await handler.close()
