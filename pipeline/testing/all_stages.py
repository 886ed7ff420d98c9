"""A worker process that serves all three stages, for programs whose work is a double: the queue around it is the real one."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable

from pipeline.attempts import Work
from pipeline.messages import Stage
from pipeline.process import Member, Shutdown, serve_stage
from pipeline.redis_client import command_client
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings

EXIT_USURPED = 3
"""Of a process whose name was taken by another."""


def process_of(boot: bytes) -> int:
    """The process that a boot id of these is of; 0 for any other."""
    pid, _, rest = boot.partition(b".")
    return int(pid) if rest else 0


async def serve_all_stages(node: str, slots: int, work_of: Callable[[Stage, Scripts], Work], *, grace_s: float = 30.0) -> int:
    """Serves until a signal or the end of the parent, on the queue of the environment; returns the exit code.

    Args:
        slots: jobs at once, a stage.
        work_of: makes the work of a stage on one shard.
    """
    queue = QueueSettings.load()
    shutdown = Shutdown()
    shutdown.on_signals()
    shutdown.on_parent_exit()
    client = command_client(queue)
    boot = f"{os.getpid()}.{secrets.token_hex(4)}"
    kept: list[bool] = []

    async def serve(stage: Stage) -> None:
        member = Member(stage=stage, node=node, slots=slots, boot=boot, grace_s=grace_s)
        kept.append(await serve_stage(queue, member, client, shutdown, lambda _, scripts: work_of(stage, scripts)))
        shutdown.stop.set()  # a process whose name was taken in one stage leaves all

    async with asyncio.TaskGroup() as tasks:
        for stage in Stage:
            tasks.create_task(serve(stage), name=stage.value)
    await client.aclose()
    return 0 if all(kept) else EXIT_USURPED
