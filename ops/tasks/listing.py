"""What tasks are installed here, and what each of them asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.sandbox_service import choose
from ops.tasks.rows import NoRows, Rows, read_rows, spec_of
from pipeline.errors import InvalidRequest, RollstreamError
from pipeline.messages import JobTemplate
from workers.handlers.base import TaskHandler
from workers.handlers.registry import BUILT_IN, Handlers
from workers.sandbox.service import RemoteSandboxes, ServiceNotThere
from workers.sandbox.service.settings import SandboxSettings
from workers.sandbox.spec import Isolation, SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTask:
    """One of them."""

    name: str
    is_built_in: bool
    broken: str = ""
    """Why it cannot be loaded here; the rest is empty then."""
    about: str = ""
    layouts: tuple[str, ...] = ()
    samples: int = 0
    """Rows that it ships."""
    sandbox: SandboxSpec | None = None
    """What a job of its first sample would need; None = nothing, or it ships no sample to ask about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxesHere:
    """What this node serves."""

    backend: str
    """Empty: none works."""
    isolation: frozenset[Isolation]
    why: str = ""
    """When none works."""

    def serves(self, wanted: SandboxSpec) -> bool:
        return wanted.isolation in self.isolation


async def listed_tasks(handlers: Handlers, *, only: Sequence[str] = ()) -> list[ListedTask]:
    """All tasks that are found here, built-in ones first."""
    return [await _listed(handlers, name) for name in handlers.names() if not only or name in only]


async def sandboxes_here(config: Path | None = None) -> SandboxesHere:
    """What the node's service says, else what is found by trying, as a service would; nothing stays of a trial."""
    settings = SandboxSettings.load(config)
    try:
        async with RemoteSandboxes(settings.run) as service:
            return SandboxesHere(backend=service.backend, isolation=service.isolation)
    except ServiceNotThere:
        pass
    try:
        chosen = await choose(settings, config)
    except InvalidRequest as error:
        return SandboxesHere(backend="", isolation=frozenset(), why=str(error))
    return SandboxesHere(backend=chosen.backend.name, isolation=chosen.probe.isolation)


async def _listed(handlers: Handlers, name: str) -> ListedTask:
    is_built_in = name in BUILT_IN
    try:
        handler = await handlers.find(name)
        rows = _samples(handler)
        return ListedTask(
            name=name,
            is_built_in=is_built_in,
            about=handler.about,
            layouts=tuple(layout.name for layout in handler.layouts),
            samples=len(rows.rows) if rows is not None else 0,
            sandbox=handler.sandbox_spec(spec_of(JobTemplate(task=name), rows.rows[0])) if rows is not None else None,
        )
    except (ImportError, AttributeError, TypeError, RollstreamError) as error:
        return ListedTask(name=name, is_built_in=is_built_in, broken=f"{type(error).__name__}: {error}")


def _samples(handler: TaskHandler) -> Rows | None:
    try:
        return read_rows(handler, None)
    except NoRows:
        return None
