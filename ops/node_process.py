"""What the processes of a node share: the queue they join, signals, the parent they leave with, and the sandboxes of the node."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from ops.sandbox_service import START_S, ServiceFinder, ServiceNotStarted
from pipeline.embedded import open_redis
from pipeline.folders import Folders, make_private_folder
from pipeline.layout import check_layout
from pipeline.messages import Stage
from pipeline.process import Shutdown, StoppedWhileWaiting, until_reached
from pipeline.redis_address import take_out_credentials
from pipeline.redis_client import command_client
from pipeline.settings import QueueSettings
from pipeline.supervisor.loop import Supervisor
from workers.sandbox.service import RemoteSandboxes, ServiceNotThere
from workers.sandbox.service.settings import SandboxSettings
from workers.settings import WorkerSettings
from workers.stages.traces.asked import asked_traces
from workers.worker import serve

if TYPE_CHECKING:
    from workers.stages.traces.traces import Traces

log = structlog.get_logger(__name__)


def join_queue(stack: AsyncExitStack, config: Path | None) -> QueueSettings:
    """The queue's settings; an embedded server is held until the stack closes."""
    settings = QueueSettings.load(config)
    if settings.redis_url:
        if take_out_credentials(settings.redis_url).password:
            log.warning(
                "password_in_address",
                what="there is a password in the address of Redis, where environments are dumped and files are shown",
                do="put it into a file of mode 600, and name that in redis_password_file (ROLLSTREAM_REDIS_PASSWORD_FILE)",
            )
        return settings
    address = stack.enter_context(open_redis())
    return QueueSettings.load(config, redis_url=address.url)


async def run_worker(worker: WorkerSettings, config: Path | None) -> int:
    """One worker process, from start to clean end; returns its exit code.

    A worker that loses the node's service hands back what it holds, finds the next service, and comes back with that one's epoch. EVAL does
    without where none comes up: most tasks are graded without a sandbox.
    """
    shutdown = Shutdown()
    shutdown.on_signals()
    shutdown.on_parent_exit()
    async with AsyncExitStack() as stack:
        traces = await stack.enter_async_context(asked_traces(worker))
        queue = join_queue(stack, config)
        try:
            fleet = await _fleet(queue, shutdown)
        except StoppedWhileWaiting:
            return 0
        scratch = worker.scratch_dir or Folders.from_environment().scratch
        make_private_folder(scratch, "ROLLSTREAM_SCRATCH_DIR")
        settings = SandboxSettings.load(config, scratch_dir=worker.scratch_dir)
        worker = worker.model_copy(update={"scratch_dir": scratch / fleet})
        if not worker.sandboxes:
            return await serve(queue, worker, shutdown, config=config, traces=traces)
        find = ServiceFinder(settings, config, worker.node)
        while True:
            try:
                await find(shutdown.stop, patience_s=START_S if worker.stage is Stage.EVAL else None)
                async with RemoteSandboxes(settings.run, boot=str(os.getpid()), fleet=fleet) as sandboxes:
                    async with _ended_by(shutdown, sandboxes.lost, hurry=True) as until:
                        code = await serve(queue, worker, until, sandboxes=sandboxes, config=config, traces=traces)
                    was_lost = sandboxes.lost.done()
            except StoppedWhileWaiting:
                return 0
            except ServiceNotThere as error:  # it ended in the moment between
                log.warning("node_service_not_there", error=str(error))
                continue
            except ServiceNotStarted as error:
                if worker.stage is not Stage.EVAL:
                    raise
                code, has_come = await _without_sandboxes(queue, worker, shutdown, find, why=str(error), config=config, traces=traces)
                if shutdown.stop.is_set() or not has_come:
                    return code
                continue
            if shutdown.stop.is_set() or not was_lost:
                return code
            log.warning("worker_comes_back", why="the node's sandbox service was lost")


async def _without_sandboxes(
    queue: QueueSettings,
    worker: WorkerSettings,
    shutdown: Shutdown,
    find: ServiceFinder,
    *,
    why: str,
    config: Path | None,
    traces: Traces | None,
) -> tuple[int, bool]:
    """Grades what needs no sandbox on a node that has none, until one has; returns the exit code, and whether that was why it left.

    Jobs that need one go back to the queue, uncounted, for other workers.
    """
    log.warning("worker_without_sandboxes", what="jobs that need a sandbox to be graded go to other workers", why=why)
    coming = asyncio.create_task(find.comes(), name="node-service")
    try:
        async with _ended_by(shutdown, coming, hurry=False) as until:
            code = await serve(queue, worker, until, config=config, traces=traces)
        has_come = coming.done()
    finally:
        coming.cancel()
    if has_come:
        log.info("worker_comes_back", why=await coming)
    return code, has_come


@asynccontextmanager
async def _ended_by(shutdown: Shutdown, news: asyncio.Future[str], *, hurry: bool) -> AsyncIterator[Shutdown]:
    """The shutdown of a worker that also leaves when there is news of the node's service.

    Args:
        hurry: what it holds is gone, as when the service is lost; else it is finished first.
    """
    until = Shutdown()

    def on_news(_: object) -> None:
        until.stop.set()
        if hurry:
            until.hurry.set()

    async def follow(given: asyncio.Event, own: asyncio.Event) -> None:
        await given.wait()
        own.set()

    following = [
        asyncio.create_task(follow(shutdown.stop, until.stop), name="stop"),
        asyncio.create_task(follow(shutdown.hurry, until.hurry), name="hurry"),
    ]
    news.add_done_callback(on_news)
    try:
        yield until
    finally:
        news.remove_done_callback(on_news)
        for task in following:
            task.cancel()


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


async def _fleet(queue: QueueSettings, shutdown: Shutdown) -> str:
    """The word of the fleet that this process belongs to: workers of another Redis on this machine judge their own sandboxes only."""
    client = command_client(queue)
    try:
        return await until_reached(lambda: check_layout(client, queue), shutdown.stop)
    finally:
        await client.aclose()
