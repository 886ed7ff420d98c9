"""Grades by a reward service, in place of a task's own grader: the option `reward_service` of any task whose end is an answer.

A handler declares the option, holds one `ServiceGrading`, leaves it in `close`, and asks it first:

    options = (..., REWARD_SERVICE)
    ...
    grade = await self._services.grade(self, context, lambda trajectory: final_answer(trajectory.answer))
    if grade is not None:
        return grade

The question is the last message that the task asks by, the reference what its `gold` says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pipeline.messages import Grade, Trajectory
from workers.graders.services import Asked, RewardServices, Scored, scorers_in
from workers.handlers.base import EvalContext, TaskHandler
from workers.handlers.graded_by import graded_by
from workers.handlers.task_options import Option, Text

if TYPE_CHECKING:
    from workers.handlers.agent_handler import AgentHandler

A_SERVICE = Text(words="the name of a reward service", least_chars=1)
REWARD_SERVICE = Option(
    name="reward_service",
    takes=A_SERVICE,
    default="",
    without="*none*",
    about="a service of the workers judges in place of the task's grader",
)
AnswerOf = Callable[[Trajectory], str | None]
_SHOWN_CHARS = 2_000


class ServiceGrading:
    """The services of a handler, connected to when a job first names one; an async context manager."""

    def __init__(self) -> None:
        self._services: RewardServices | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._services is not None:
            services, self._services = self._services, None
            await services.__aexit__(kind, error, trace)

    async def scored(self, handler: TaskHandler, name: str, asked: Asked) -> Scored:
        """The score of the service of a name, as the settings of the handler's process have it.

        Raises:
            InvalidRequest: this worker has none of that name.
            GraderError: it gave no score.
        """
        if self._services is None:
            self._services = RewardServices(scorers_in(handler.config))
        return await self._services.grade_by_service(name, asked)

    async def grade(self, handler: AgentHandler, context: EvalContext, answer_of: AnswerOf) -> Grade | None:
        """The grade of the service that the job names; None when it names none.

        Args:
            answer_of: what of a trajectory is the answer.

        Raises:
            InvalidRequest: this worker has no such service.
            GraderError: the service gave no score.
        """
        name = REWARD_SERVICE.of(context.spec)
        if not name:
            return None
        started = time.perf_counter()
        asked = asked_of(handler, context, answer_of)
        scored = await self.scored(handler, name, asked)
        details: dict[str, object] = {"reward_service": name, "reason": scored.reason, "extracted": asked.answer[:_SHOWN_CHARS]}
        if scored.said:
            details["said"] = scored.said
        return Grade(
            reward=scored.score,
            components={**scored.components, "answered": 1.0 if asked.answer else 0.0},
            details=details,
            grader=f"{name}, {graded_by(handler.name)}",
            seconds=time.perf_counter() - started,
        )


def asked_of(handler: AgentHandler, context: EvalContext, answer_of: AnswerOf) -> Asked:
    """What a service is asked of a trajectory's end."""
    spec, response = context.spec, context.trajectory.answer
    answer = answer_of(context.trajectory) or ""
    gold = handler.gold(spec)
    reference = "" if gold is None else answer_of(gold) or gold.answer
    question = next((message.content for message in reversed(handler.messages(spec)) if message.role == "user"), "")
    return Asked(
        question=question,
        reference=reference,
        response=response if answer in response else answer,
        answer=answer,
        task=handler.name,
        prompt_id=spec.prompt.id,
    )
