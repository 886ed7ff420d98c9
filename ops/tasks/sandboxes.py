"""The sandboxes of this node for a command in the foreground: of the service that serves here, else of one that is started, as workers do.

Nobody is asked before the first sandbox is, so a task without one needs no backend. A service that was started for the command ends some
seconds after it, however the command ended; another one ends what the command had attached at once.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

from ops.sandbox_service import ServiceFinder
from workers.sandbox.base import Probe, Sandbox
from workers.sandbox.service import RemoteSandboxes
from workers.sandbox.service.settings import SandboxSettings
from workers.sandbox.spec import SandboxHandle, SandboxOwner, SandboxSpec, Snapshot
from workers.settings import default_node


class SandboxesOnDemand:
    """A provider for commands.

    Its sandboxes belong to a fleet of its own: the workers of the node, whose Redis has never heard of their jobs, leave them alone.
    """

    def __init__(self, config: Path | None = None) -> None:
        self._config = config
        self._settings = SandboxSettings.load(config)
        self._fleet = f"foreground-{secrets.token_hex(4)}"
        self._finder: ServiceFinder | None = None
        self._service: RemoteSandboxes | None = None
        self._looking = asyncio.Lock()

    @property
    def backend(self) -> str:
        return self._service.backend if self._service is not None else self._settings.backend

    async def probe(self) -> Probe:
        return await (await self._found()).probe()

    async def start(self, spec: SandboxSpec, owner: SandboxOwner) -> Sandbox:
        return await (await self._found()).start(spec, owner)

    async def attach(self, handle: SandboxHandle, owner: SandboxOwner) -> Sandbox:
        return await (await self._found()).attach(handle, owner)

    async def restore(self, snapshot: Snapshot, owner: SandboxOwner) -> Sandbox:
        return await (await self._found()).restore(snapshot, owner)

    async def drop(self, snapshot: Snapshot, owner: SandboxOwner) -> None:
        await (await self._found()).drop(snapshot, owner)

    async def close(self) -> None:
        """Ends what was made here and nobody ended, parked sandboxes too, and lets go of the service."""
        service, self._service = self._service, None
        finder, self._finder = self._finder, None
        try:
            if service is not None:
                if not service.lost.done():
                    left = [owned.sandbox_id for owned in await service.owned()]
                    if left:
                        await service.end(left, "the command has ended")
                await service.close()
        finally:
            if finder is not None:
                finder.close()

    async def _found(self) -> RemoteSandboxes:
        async with self._looking:
            if self._service is None:
                self._finder = ServiceFinder(self._settings, self._config, self._settings.node or default_node())
                await self._finder(asyncio.Event())
                service = RemoteSandboxes(self._settings.run, boot=str(os.getpid()), fleet=self._fleet)
                self._service = await service.__aenter__()
            return self._service

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()
