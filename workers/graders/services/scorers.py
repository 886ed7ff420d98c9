"""The reward services of a process, by name, connected to when a job first asks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Protocol, Self

from pipeline.errors import InvalidRequest
from pipeline.near_names import hint
from workers.graders.services.asked import Asked, Scored
from workers.graders.services.client import ServiceClient
from workers.graders.services.llm_judge import LlmJudge
from workers.graders.services.remote_scorer import RemoteScorer
from workers.graders.services.settings import ScorerSettings


class Scorer(Protocol):
    """Whatever scores."""

    async def score(self, asked: Asked) -> Scored:
        """The score of an answer, or a `GraderError`."""
        ...


class RewardServices:
    """An async context manager that owns the connections.

    Args:
        settings: of each service, by name.
    """

    def __init__(self, settings: Mapping[str, ScorerSettings]) -> None:
        self._settings = dict(settings)
        self._scorers: dict[str, Scorer] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._scorers.clear()
        await self._stack.aclose()

    def settings_of(self, name: str) -> ScorerSettings:
        """Of one service.

        Raises:
            InvalidRequest: this process knows none of that name.
        """
        if name not in self._settings:
            known = hint(name, sorted(self._settings))
            raise InvalidRequest(f"no reward service {name!r} is set here ([scorers.NAME] of rollstream.toml); {known}", field="options")
        return self._settings[name]

    async def grade_by_service(self, name: str, asked: Asked) -> Scored:
        """The score that a service gives. An answer that is empty or too long scores 0 and is not sent.

        Raises:
            InvalidRequest: this process knows none of that name.
            GraderError: it gave no score.
        """
        settings = self.settings_of(name)
        if not asked.answer.strip():
            return Scored(score=0.0, reason="no_answer")
        if max(len(asked.answer), len(asked.response) if settings.kind == "remote" else 0) > settings.max_answer_chars:
            return Scored(score=0.0, reason="long")
        if name not in self._scorers:
            client = ServiceClient(name, settings)
            scorer = RemoteScorer(client) if settings.kind == "remote" else LlmJudge(client)
            await self._stack.enter_async_context(client)
            if name in self._scorers:  # another job was as fast
                return await self._scorers[name].score(asked)
            self._scorers[name] = scorer
        return await self._scorers[name].score(asked)
