"""What the model of a job could call, as the original's results tell it. Handlers say it; nothing of theirs is opened or run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import cast

import structlog

from pipeline.messages import JobSpec, Prompt
from trainer_client import JobRequest
from workers.handlers.agent_handler import AgentHandler
from workers.handlers.base import TaskHandler
from workers.handlers.registry import BUILT_IN, ENTRY_POINTS
from workers.sandbox.base import Sandbox
from workers.tools import ToolSet

log = structlog.get_logger(__name__)


class _Described:
    """Stands where tools want a sandbox to be described: they are made, and not called."""

    workdir = "/workspace"

    def shell(self, name: str = "main") -> _Described:
        return self

    def kernel(self, name: str = "main") -> _Described:
        return self


class TaskTools:
    """The tools of the tasks that are known here."""

    def __init__(self, more: Sequence[str] = ()) -> None:
        self._installed = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
        self._made: dict[str, TaskHandler] = {}
        self.names = tuple(dict.fromkeys((*BUILT_IN, *sorted(self._installed), *more)))
        """Tasks that may be asked for."""

    def of(self, request: JobRequest) -> list[Mapping[str, object]]:
        """Schemas as the model's template shows them; none where the task cannot say without being run."""
        try:
            handler = self._handler(request.task)
            if not isinstance(handler, AgentHandler):
                return []
            spec = JobSpec(
                job=f"gateway.{request.id}",
                run="gateway",
                group="",
                member=0,
                draw=0,
                attempt=0,
                template=request.template(),
                prompt=Prompt(id=request.id, data=request.prompt),
            )
            sandbox = (
                cast(Sandbox, _Described()) if handler.sandbox_spec(spec) is not None else None
            )  # no more of it is asked for than it has
            return list(ToolSet(tuple(handler.tools(spec, sandbox))).schemas())
        except Exception as error:  # noqa: BLE001  # a handler of anybody's, on a row that its worker judges; the job has ended and has its result
            log.warning("tools_not_told", task=request.task, error=repr(error))
            return []

    def _handler(self, task: str) -> TaskHandler | None:
        if task not in self._made:
            maker = BUILT_IN.get(task) or (self._installed[task].load() if task in self._installed else None)
            if maker is None:
                return None
            self._made[task] = maker()
        return self._made[task]


__all__ = ["TaskTools"]
