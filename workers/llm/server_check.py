"""How a job looks at the servers that it is about to call.

A pool chooses servers while the job runs, so whoever must have seen each of them before its first call asks the pool to show them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, runtime_checkable

from workers.llm.backend import Model

ServerCheck = Callable[[str, Model], Awaitable[None]]
"""Looks at a server, by its address, and raises when it must not be called. Quick for one that it has seen."""


@runtime_checkable
class ShowsServers(Protocol):
    """A `Model` that chooses among servers."""

    def check_servers(self, check: ServerCheck) -> None:
        """Shows each server to `check` before any call of this job to it."""
        ...


@runtime_checkable
class ChatTemplate(Protocol):
    """A server that renders dialogues by its own template."""

    async def render_chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], **template_kwargs: Any) -> list[int]:
        """Ids of a dialogue, generation prompt included."""
        ...
