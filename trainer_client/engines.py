"""The engines of a run, as its trainer speaks with them: over HTTP, all at once.

aiohttp comes with the first use and not with the import of this package: a trainer that leaves its servers to others needs none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pipeline.errors import RollstreamError
from pipeline.inference_pool.pauses import PausedServer
from trainer_client.logs import Log

if TYPE_CHECKING:
    from pipeline.engines import EngineControl, Health

log = Log(__name__)

WORST_DETAIL = 300


class EnginesNotInstalled(RollstreamError, ImportError):
    """What speaks with engines is not installed in the trainer's environment."""

    def __init__(self, missing: str) -> None:
        super().__init__(
            f"weight updates pause and label engines over HTTP, and {missing} is not installed: pip install 'rollstream[trainer]'"
        )


class NotLoaded(RollstreamError):
    """A server cannot be part of this update."""


@dataclass(eq=False)
class Engine:
    """One server during an update, and what is known of it."""

    server: PausedServer
    control: EngineControl
    failed: str = ""
    """Why it is out of this update; empty = it is in."""
    is_paused: bool = False
    """By us, at the engine; one without a pause of its own is only called no more."""
    is_marked: bool = False
    """Its label says that it is being changed."""
    is_unproven: bool = False
    """It may bear the label of this update, and is not proven to hold the weights."""
    keeps_label: bool = True
    before: str = ""
    """Its label when the update began."""
    started: str = ""
    """Names its start; another one later means that it has other weights."""

    @property
    def url(self) -> str:
        return self.server.url

    async def look(self) -> Health:
        """A look at a living server.

        Raises:
            NotLoaded: it does not answer.
        """
        health = await self.control.health()
        if not health.alive:
            raise NotLoaded(f"it does not answer: {health.detail}")
        return health

    async def label(self, label: str) -> None:
        """Gives the weights a label, where the server keeps one."""
        self.keeps_label = await self.control.set_version(label) and bool(await self.control.version())

    async def prove(self, label: str) -> None:
        """Still the same start of the server, with this label: what was done to it is still done.

        A restart loses the label and the pause, and shows in `started`; which of them tells depends on what the server reports.

        Raises:
            NotLoaded: it restarted, or somebody else labelled it.
        """
        health = await self.look()
        if self.started and health.started != self.started:
            raise NotLoaded("it restarted during the update, and holds the weights that it started with")
        if self.keeps_label and health.version != label:
            raise NotLoaded(f"expected the label {label}, it has {health.version!r}: it restarted, or another trainer has it")
        if not self.started and self.is_paused and health.tells_pause and not health.paused:
            raise NotLoaded("it is not paused any more: it restarted during the update")


class Engines:
    """Connections to all engines of one update. `async with` opens and closes them."""

    def __init__(self, servers: Iterable[PausedServer], api_key: str) -> None:
        self._servers = tuple(servers)
        self._api_key = api_key
        self._stack = AsyncExitStack()
        self.all: list[Engine] = []

    async def __aenter__(self) -> Self:
        try:
            from pipeline.engines import Exchange, connect_control
        except ModuleNotFoundError as error:
            raise EnginesNotInstalled(error.name or "a package") from error
        for server in self._servers:
            http = await self._stack.enter_async_context(Exchange(server.url, self._api_key))
            self.all.append(Engine(server, connect_control(http)))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    @property
    def left(self) -> list[Engine]:
        """Those that have not failed."""
        return [engine for engine in self.all if not engine.failed]

    async def each(self, what: str, do: Callable[[Engine], Awaitable[None]], *, within_s: float | None = None) -> None:
        """Does something with all that have not failed, at once; those with which it goes wrong fail.

        Args:
            what: for people.
            within_s: longest time; None = as long as it takes.
        """
        await asyncio.gather(*(self._one(engine, what, do, within_s) for engine in self.left))

    async def _one(self, engine: Engine, what: str, do: Callable[[Engine], Awaitable[None]], within_s: float | None) -> None:
        from pipeline.engines import ModelError

        try:
            async with asyncio.timeout(within_s):
                await do(engine)
        except (ModelError, NotLoaded, TimeoutError) as error:
            why = str(error) or f"no answer within {within_s or 0.0:.1f} s"
            engine.failed = f"{what}: {why}"[:WORST_DETAIL]
            log.warning("engine_failed", server=engine.url, what=what, error=why)
