"""The gateway as a process of its own: settings of the queue, signals, and the parent it leaves with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from ops.gateway.serving import Listening, serve
from ops.gateway.settings import GatewaySettings
from ops.node_process import join_queue
from pipeline.process import Shutdown


async def run_gateway(settings: GatewaySettings, config: Path | None, announce: Callable[[Listening], None]) -> int:
    """From start to clean end; returns the exit code."""
    shutdown = Shutdown()
    shutdown.on_signals()
    shutdown.on_parent_exit()
    async with AsyncExitStack() as stack:
        queue = join_queue(stack, config)
        return await serve(settings, queue, shutdown, announce=announce)


__all__ = ["run_gateway"]
