"""The engines of a run, as its trainer speaks with them: over HTTP, all at once.

The HTTP client comes with the first use and not with the import of this package, which a training process waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pipeline.errors import RollstreamError
from pipeline.inference_pool.pauses import PausedServer
from trainer_client.logs import Log

if TYPE_CHECKING:
    from pipeline.engines import EngineControl, Health

log = Log(__name__)

WORST_DETAIL = 300


class NotLoaded(RollstreamError):
    """A server cannot be part of this update."""


@dataclass(eq=False)
class Engine:
    """One server during an update, and what is known of it."""

    server: PausedServer
    control: EngineControl
    api_key: str = field(default="", repr=False)
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

    async def look(self, control: EngineControl | None = None) -> Health:
        """A look at a living server.

        Raises:
            NotLoaded: it does not answer.
        """
        health = await (control or self.control).health()
        if not health.alive:
            raise NotLoaded(f"it does not answer: {health.detail}")
        return health

    async def label(self, label: str) -> None:
        """Gives the weights a label, where the server keeps one."""
        self.keeps_label = await self.control.set_version(label) and bool(await self.control.version())

    async def relabel(self, proven: str, label: str) -> None:
        """Gives another label to the very start of the server that is proven to bear this one.

        Where nothing names the start, proof and label go over one connection, which a restart breaks: no later start ever gets the label.
        Where it is named the next proof tells, and the pool, which knows it, believes the label of no other start.

        Raises:
            NotLoaded: see `prove`.
            ModelError: it did not answer, or not over that connection.
        """
        from pipeline.engines import Exchange, connect_control

        if self.started:
            await self.prove(proven)
            self.is_unproven = True
            await self.control.set_version(label)
            return
        async with Exchange(self.url, self.api_key, only_one=True) as http:
            control = connect_control(http)
            await self.prove(proven, control)
            self.is_unproven = True
            await control.set_version(label)

    async def prove(self, label: str, control: EngineControl | None = None) -> None:
        """Still the same start of the server, with this label: what was done to it is still done.

        A restart loses the label and the pause, and shows in `started`; which of them tells depends on what the server reports.

        Args:
            control: asks over these connections instead of those that stand.

        Raises:
            NotLoaded: it restarted, or somebody else labelled it; or nothing would tell that it restarted.
        """
        health = await self.look(control)
        if not self.started and not self.keeps_label:
            raise NotLoaded(
                "it tells neither which weights it holds nor when it started, so a restart would go unseen and its old weights bear the "
                "new label: let it show one of them (vLLM: VLLM_SERVER_DEV_MODE=1, or /metrics)"
            )
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
        from pipeline.engines import Exchange, connect_control

        for server in self._servers:
            http = await self._stack.enter_async_context(Exchange(server.url, self._api_key))
            self.all.append(Engine(server, connect_control(http), self._api_key))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stack.aclose()

    @property
    def left(self) -> list[Engine]:
        """Those that have not failed."""
        return [engine for engine in self.all if not engine.failed]

    @property
    def starts(self) -> dict[str, str]:
        """By address, what names the start of each that was looked at."""
        return {engine.url: engine.started for engine in self.all}

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
