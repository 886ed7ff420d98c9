"""The sandboxes of one attempt: the provider as its handler sees it, and the way to end them over its head.

A handler that goes on after its job was cancelled would keep its sandbox, and what runs in it. So each start and each attachment passes the
gate, and is remembered here; `take` ends all of them, those too that are still being made.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import reduce
from types import TracebackType
from typing import Self

import structlog

from workers.sandbox.base import Probe, Sandbox, SandboxProvider
from workers.sandbox.errors import SandboxError
from workers.sandbox.spec import SandboxHandle, SandboxOwner, SandboxSpec, Snapshot
from workers.sandbox.use import SandboxUse, joined
from workers.stages.measures import Measures

log = structlog.get_logger(__name__)

USE_S = 2.0
"""A sandbox that is still attached is asked for its use so long; a record is not worth the wait for a service that hangs."""


class HeldSandboxes:
    """A provider for one attempt.

    Args:
        provider: the node's; not closed here.
        gate: passed before each start and attachment.
        use_s: how long one of them is asked for its use.
        measures: count what is started.
    """

    def __init__(
        self, provider: SandboxProvider, gate: Callable[[], None], *, use_s: float = USE_S, measures: Measures | None = None
    ) -> None:
        self._provider = provider
        self._gate = gate
        self._use_s = use_s
        self._measures = measures
        self._held: list[Sandbox] = []
        self._taken = False

    @property
    def backend(self) -> str:
        return self._provider.backend

    async def probe(self) -> Probe:
        return await self._provider.probe()

    async def start(self, spec: SandboxSpec, owner: SandboxOwner) -> Sandbox:
        self._gate()
        return await self._hold(await self._timed(self._provider.start(spec, owner)))

    async def attach(self, handle: SandboxHandle, owner: SandboxOwner) -> Sandbox:
        self._gate()
        return await self._hold(await self._provider.attach(handle, owner))

    async def restore(self, snapshot: Snapshot, owner: SandboxOwner) -> Sandbox:
        self._gate()
        return await self._hold(await self._timed(self._provider.restore(snapshot, owner)))

    async def drop(self, snapshot: Snapshot, owner: SandboxOwner) -> None:
        await self._provider.drop(snapshot, owner)

    async def _timed(self, start: Awaitable[Sandbox]) -> Sandbox:
        """A start, counted. One that was interrupted is neither."""
        began_s = time.monotonic()
        try:
            sandbox = await start
        except Exception:
            if self._measures is not None:
                self._measures.sandbox_starts["failed"].add()
            raise
        if self._measures is not None:
            self._measures.sandbox_starts["ok"].add()
            self._measures.sandbox_start_seconds.observe(time.monotonic() - began_s)
        return sandbox

    async def _hold(self, sandbox: Sandbox) -> Sandbox:
        self._held.append(sandbox)
        if self._taken:
            await sandbox.kill()
        return sandbox

    async def take(self) -> None:
        """Kills all that the attempt holds or will get."""
        self._taken = True
        await asyncio.gather(*(sandbox.kill() for sandbox in self._held))

    async def used(self) -> SandboxUse | None:
        """What all of them have used together; None when there was none, or none of them says."""
        known: list[SandboxUse] = []
        for sandbox in self._held:
            try:
                async with asyncio.timeout(self._use_s):
                    use = await sandbox.use()
            except (SandboxError, TimeoutError) as error:
                log.warning("sandbox_use_not_told", sandbox=sandbox.handle.sandbox_id, error=str(error))
                continue
            if use.enforced:
                known.append(use)
        return reduce(joined, known) if known else None

    async def close(self) -> None:
        """Nothing: the sandboxes are their attempt's, the provider is the node's."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()
