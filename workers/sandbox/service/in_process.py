"""A whole node service in one process, over its real socket: for tests, benchmarks and programs that are a node of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from pipeline.folders import make_private_folder
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.service.client import RemoteSandboxes
from workers.sandbox.service.node import NodeSandboxes
from workers.sandbox.service.peer import PATIENCE, Patience
from workers.sandbox.service.server import LOOK_S, SandboxServer
from workers.sandbox.service.settings import SandboxSettings
from workers.sandbox.service.wire import Message
from workers.sandbox.spec import Isolation


@asynccontextmanager
async def serving_here(
    provider: LocalSandboxes,
    run_dir: Path,
    *,
    isolation: Iterable[Isolation] = (Isolation.NONE,),
    settings: SandboxSettings | None = None,
    patience: Patience = PATIENCE,
    look_s: float = LOOK_S,
) -> AsyncIterator[SandboxServer]:
    """Serves what a provider makes, for as long as the block runs.

    Args:
        provider: entered; closed here.
        run_dir: where the socket is; short, made when it is missing.
        isolation: what the provider serves, as workers are told.
        settings: of starts, the warm pool and the janitor; its folders are not looked at.
        patience: with its peers.
        look_s: between looks whether its socket is still there.
    """
    make_private_folder(run_dir)

    def told() -> Message:
        return {"backend": provider.backend, "isolation": sorted(word.value for word in isolation)}

    async with (
        provider,
        NodeSandboxes(provider, settings) as node,
        SandboxServer(node, run_dir, told, patience=patience, look_s=look_s) as server,
    ):
        yield server
        server.stop_listening()
        await server.node.drain(0.0)


@asynccontextmanager
async def served_here(
    provider: LocalSandboxes, run_dir: Path, *, fleet: str = "", settings: SandboxSettings | None = None
) -> AsyncIterator[RemoteSandboxes]:
    """The same, and a client of it."""
    async with serving_here(provider, run_dir, settings=settings), RemoteSandboxes(run_dir, fleet=fleet) as remote:
        yield remote
