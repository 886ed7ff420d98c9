"""What the processes of a node share: the queue they join, signals, the parent they leave with, and the sandboxes of the node."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from pipeline.embedded import open_redis
from pipeline.folders import Folders, make_private_folder
from pipeline.layout import check_layout
from pipeline.messages import Stage
from pipeline.process import Shutdown, StoppedWhileWaiting, until_reached
from pipeline.redis_client import command_client
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from workers.sandbox.base import SandboxProvider
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.process import ProcessBackend
from workers.settings import WorkerSettings
from workers.worker import SANDBOXES, serve

log = structlog.get_logger(__name__)


def join_queue(stack: AsyncExitStack, config: Path | None) -> QueueSettings:
    """The queue's settings; an embedded server is held until the stack closes."""
    settings = QueueSettings.load(config)
    if settings.redis_url:
        return settings
    address = stack.enter_context(open_redis())
    return QueueSettings.load(config, redis_url=address.url)


async def run_worker(worker: WorkerSettings, config: Path | None) -> int:
    """One worker process, from start to clean end; returns its exit code."""
    shutdown = Shutdown()
    shutdown.on_signals()
    shutdown.on_parent_exit()
    async with AsyncExitStack() as stack:
        queue = join_queue(stack, config)
        try:
            worker = await _below_fleet(queue, worker, shutdown)
        except StoppedWhileWaiting:
            return 0
        sandboxes: SandboxProvider | None = None
        if worker.sandbox and worker.stage is not Stage.EVAL:
            sandboxes = await stack.enter_async_context(_sandboxes(worker))
        return await serve(queue, worker, shutdown, sandboxes=sandboxes)


async def run_supervisor(name: str, config: Path | None) -> int:
    """One supervisor process, from start to clean end; returns its exit code."""
    shutdown = Shutdown()
    shutdown.on_signals()
    shutdown.on_parent_exit()
    async with AsyncExitStack() as stack:
        queue = join_queue(stack, config)
        log.info("supervisor_starts", name=name, shards=queue.shards, pid=os.getpid())
        await Supervisor(queue, name=name).run(shutdown.stop)
    return 0


async def _below_fleet(queue: QueueSettings, worker: WorkerSettings, shutdown: Shutdown) -> WorkerSettings:
    """The same worker with a scratch folder of its fleet's own: workers of another Redis on this machine sweep there, not here."""
    client = command_client(queue)
    try:
        fleet = await until_reached(lambda: check_layout(client, queue), shutdown.stop)
    finally:
        await client.aclose()
    scratch = worker.scratch_dir or Folders.from_environment().scratch
    make_private_folder(scratch, "ROLLSTREAM_SCRATCH_DIR")
    return worker.model_copy(update={"scratch_dir": scratch / fleet})


def _sandboxes(worker: WorkerSettings) -> LocalSandboxes:
    folders = Folders.from_environment()
    assert worker.scratch_dir is not None  # `_below_fleet` has set it
    make_private_folder(worker.scratch_dir, "ROLLSTREAM_SCRATCH_DIR")
    make_private_folder(folders.run)
    return LocalSandboxes(ProcessBackend(), scratch_dir=worker.scratch_dir / SANDBOXES, run_dir=folders.run, node=worker.node)
