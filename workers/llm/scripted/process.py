"""A server as a process: it ends with SIGTERM, SIGINT, or the process that started it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from workers.llm.scripted.server import ModelServer, serve_until

PARENT_FD = "ROLLSTREAM_PARENT_FD"
"""The reading end of a pipe of the process that started this one. As in `pipeline.process`, which knows Redis and so is not for us."""


async def serve_until_signal(server: ModelServer[Any]) -> None:
    """Serves, and says first where, on a line of its own."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if os.environ.get(PARENT_FD):
        pipe = int(os.environ[PARENT_FD])

        def on_end() -> None:
            loop.remove_reader(pipe)
            stop.set()

        loop.add_reader(pipe, on_end)

    def ready(url: str) -> None:
        sys.stdout.write(url + "\n")
        sys.stdout.flush()

    await serve_until(stop, server, ready)
