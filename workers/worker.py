"""A worker process: the work of one stage, wired to the queue.

What each part does is explained where it stands: membership and drain in `pipeline/process.py`, the loop in `pipeline/consumer.py`, the
work in `workers/stages`, tasks in `workers/handlers`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from pipeline.attempts import Slots, Work
from pipeline.blobs import BlobSettings, open_store
from pipeline.folders import Folders, make_private_folder
from pipeline.inference_pool import InferencePool, PoolLooks, PoolPlaces
from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.process import Member, Shutdown, first_cause, serve_stage
from pipeline.redis_client import command_client
from pipeline.scripts import Scripts
from pipeline.settings import QueueSettings
from workers.agent.template_check import TemplateChecks
from workers.handlers.base import TaskHandler
from workers.handlers.registry import Handlers
from workers.sandbox.service import RemoteSandboxes
from workers.settings import WorkerSettings
from workers.stages.bodies import Bodies
from workers.stages.concurrency import Limiter
from workers.stages.eval import EvalWork
from workers.stages.init import InitWork
from workers.stages.measures import kept_measures
from workers.stages.model_servers import ModelServers
from workers.stages.node_agent import NodeAgent
from workers.stages.pool_keeper import PoolKeeper
from workers.stages.run import RunWork
from workers.stages.stage import Place, StageWork

if TYPE_CHECKING:
    from workers.stages.traces.traces import Traces

log = structlog.get_logger(__name__)

EXIT_OK, EXIT_USURPED = 0, 3
NAMES = "names"
"""Folder below scratch."""


async def serve(
    queue: QueueSettings,
    worker: WorkerSettings,
    shutdown: Shutdown,
    *,
    handlers: Mapping[str, Callable[[], TaskHandler]] | None = None,
    sandboxes: RemoteSandboxes | None = None,
    config: Path | None = None,
    traces: Traces | None = None,
) -> int:
    """Serves a stage until it is shut down, then drains. Returns the exit code.

    Args:
        handlers: tasks beside the built-in and installed ones.
        sandboxes: the node's service; entered and closed by the caller, who also sees to the end of this when the service is lost.
        config: the `rollstream.toml` that handlers with settings of their own read.
        traces: where spans go; None = nobody asked for any.
    """
    can = () if sandboxes is None else sorted(word.value for word in sandboxes.isolation)
    scratch = worker.scratch_dir or Folders.from_environment().scratch
    make_private_folder(scratch, "ROLLSTREAM_SCRATCH_DIR")
    member = Member(
        stage=worker.stage,
        node=worker.node,
        slots=worker.slot_count,
        index=worker.index,
        epoch=sandboxes.epoch if sandboxes is not None else "" if worker.stage is Stage.EVAL else "none",
        grace_s=worker.grace_s,
        capabilities=worker.capabilities or tuple(dict.fromkeys(("none", *can))),
        lock_folder=scratch / NAMES,
    )
    place = Place(node=member.node, epoch=member.epoch, boot=member.boot)
    structlog.contextvars.bind_contextvars(worker=member.consumer)
    log.info("worker_starts", stage=worker.stage.value, slots=member.slots, boot=member.boot, shards=queue.shards, pid=os.getpid())
    log.info("worker_takes", capabilities=member.capabilities, node=member.node, epoch=member.epoch)
    measures = kept_measures(worker.stage, worker.measures_dir, f"{worker.stage.value}-{worker.index}")
    measures.slots.add(member.slots)
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(Handlers(handlers, config=config))
        client = command_client(queue)
        stack.push_async_callback(client.aclose)
        models: ModelServers | None = None
        limiter: Limiter | None = None
        templates = TemplateChecks()
        blobs = open_store(BlobSettings.load(config), queue.namespace)
        if worker.stage is Stage.RUN:
            pool = InferencePool(client, queue.namespace, lease_s=queue.lease_s)
            key = worker.model_key_file.read_text(encoding="utf-8").strip() if worker.model_key_file else ""
            if worker.adaptive:
                places = PoolPlaces(client, queue.namespace)
                limiter = await stack.enter_async_context(Limiter(places, who=member.consumer, low=worker.min_slots, high=member.slots))
            models = await stack.enter_async_context(ModelServers(pool, lease_s=queue.lease_s, api_key=key, measures=measures))

        allowed = None if limiter is None else limiter.allowed_jobs
        if sandboxes is not None and worker.stage is Stage.INIT:
            allowed = _while_well(sandboxes, member.slots)
        slots = Slots(member.slots, allowed)
        if limiter is not None:
            limiter.on_room = slots.changed
        if sandboxes is not None and worker.stage is Stage.INIT:
            slots.idle_why = sandboxes.degraded
            sandboxes.on_degraded(partial(_on_degraded, slots))

        def stage_work(keys: Keys, scripts: Scripts) -> StageWork:
            bodies = Bodies(client, keys)
            if models is not None:
                return RunWork(
                    bodies=bodies,
                    handlers=found,
                    sandboxes=sandboxes,
                    place=place,
                    models=models,
                    templates=templates,
                    limiter=limiter,
                    blobs=blobs,
                )
            if worker.stage is Stage.INIT:
                return InitWork(scripts, bodies=bodies, handlers=found, sandboxes=sandboxes, place=place)
            return EvalWork(bodies=bodies, handlers=found, sandboxes=sandboxes, place=place, max_attached_bytes=queue.max_body_bytes)

        def work_of(keys: Keys, scripts: Scripts) -> Work:
            work = stage_work(keys, scripts)
            work.measures, work.traces = measures, traces
            return work

        left = asyncio.Event()
        agent = NodeAgent(client, queue, sandboxes) if sandboxes is not None else None
        try:
            async with asyncio.TaskGroup() as tasks:
                if agent is not None:
                    tasks.create_task(agent.run(left), name="node-agent")
                if models is not None:
                    keeper = PoolKeeper(PoolLooks(client, queue.namespace, shards=queue.shards), models.backend)
                    tasks.create_task(keeper.run(left), name="pool-keeper")
                try:
                    heard = agent.hear if agent is not None else None
                    kept = await serve_stage(queue, member, client, shutdown, work_of, heard, slots=slots)
                finally:
                    left.set()
        except BaseExceptionGroup as group:
            raise first_cause(group) from group
    log.info("worker_stopped", usurped=not kept)
    return EXIT_OK if kept else EXIT_USURPED


def _while_well(sandboxes: RemoteSandboxes, slots: int) -> Callable[[], int]:
    """How many jobs INIT may have: none more while its node is degraded. They stay in the queue, for nodes that are well."""
    return lambda: 0 if sandboxes.degraded else slots


def _on_degraded(slots: Slots, why: str) -> None:
    slots.idle_why = why
    if why:
        log.warning("worker_claims_nothing", why=why)
    else:
        log.info("worker_claims_again")
        slots.changed()
