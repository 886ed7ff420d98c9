"""A gateway process: it takes its run, listens, serves, and leaves in two steps.

Protocol of leaving. SIGTERM: no job is accepted, streams of events end, open calls go on; after the grace, at a second SIGTERM, or when
another client took the run, whoever still waits is told where the result will be. Then connections close and the run is let go: jobs go
on without a gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog

from ops.gateway.access import Guard
from ops.gateway.answers import LargeAnswers
from ops.gateway.application import GatewayApplication
from ops.gateway.bodies import BodyBudget
from ops.gateway.door import Door
from ops.gateway.events import BLOCK_S, Events
from ops.gateway.listening import bound_socket, listening
from ops.gateway.memory import Memory
from ops.gateway.metrics import Metrics
from ops.gateway.original_request import OriginalRequests
from ops.gateway.refusals import refusal_of
from ops.gateway.settings import GatewaySettings
from ops.gateway.state import Gateway
from ops.gateway.steps import Steps
from ops.gateway.tools import TaskTools
from ops.gateway.work import Work
from pipeline.errors import BrokerError, RollstreamError
from pipeline.keys import Keys, shard_of
from pipeline.process import Shutdown
from pipeline.redis_client import command_client, reader_client
from pipeline.scripts.step_calls import StepScripts
from pipeline.settings import QueueSettings
from trainer_client import ClientClosed, connect

log = structlog.get_logger(__name__)

EXIT_OK, EXIT_FENCED = 0, 3
SWEEP_S = 5.0
"""Most time between two looks at what may go; shorter where results are kept for less."""
LAST_ANSWERS_S = 5.0
"""For answers that say goodbye."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a gateway listens, once it does."""

    url: str
    """`http://host:port` or `unix:/path.sock`."""
    run: str
    incarnation: int
    pid: int
    needs_token: bool


async def serve(
    settings: GatewaySettings, queue: QueueSettings, shutdown: Shutdown, *, announce: Callable[[Listening], None] = lambda _: None
) -> int:
    """Serves until it is shut down, or another client takes the run. Returns the exit code.

    Raises:
        InvalidRequest: these settings cannot be, or the address is taken; nothing was begun.
    """
    guard = Guard.of(settings)
    keys = Keys.of_shard(queue.namespace, shard_of(settings.run, queue.shards))
    tools = TaskTools(settings.tasks)
    originals = OriginalRequests(settings, tools.names)
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(bound_socket(settings))
        client = command_client(queue)
        stack.push_async_callback(client.aclose)
        reader = reader_client(queue, block_s=BLOCK_S)
        stack.push_async_callback(reader.aclose)
        run = await stack.enter_async_context(connect(queue, run=settings.run))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        memory = Memory(client, keys, run.id, ttl_s=queue.run_keys_ttl_s)
        await memory.load()
        if "ended" in memory:
            await StepScripts(client, keys).end_prompts(run.id, run.incarnation)
        gateway = Gateway(
            settings=settings,
            queue=queue,
            run=run,
            client=client,
            keys=keys,
            work=Work(run, settings),
            memory=memory,
            door=Door(memory),
            steps=Steps(run, tasks),
            events=Events(client, reader, keys.results(run.id), most=settings.max_streams),
            budget=BodyBudget(one=settings.max_body_bytes, all_of_them=settings.max_bodies_bytes, seconds=settings.body_s),
            large=LargeAnswers(most_bytes=settings.max_answers_bytes),
            tools=tools,
            originals=originals,
            metrics=Metrics(),
            tasks=tasks,
        )
        application = GatewayApplication(gateway, guard)
        async with _background(gateway) as ended, listening(gateway, application, listener) as url:
            needs_token = bool(guard.files)
            announce(Listening(url=url, run=run.id, incarnation=run.incarnation, pid=os.getpid(), needs_token=needs_token))
            log.info(
                "gateway_serves",
                url=url,
                run=run.id,
                incarnation=run.incarnation,
                started=gateway.door.is_open,
                guarded=needs_token,
            )
            code = await _until_told(gateway, shutdown, ended)
            await _leave(gateway, application, shutdown)
        return code


# ---- in the background


@asynccontextmanager
async def _background(gateway: Gateway) -> AsyncIterator[asyncio.Future[Exception]]:
    """What goes on beside the calls; gives what ended the run's client, once something has."""
    ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()

    async def follow() -> None:
        try:
            await gateway.work.follow()
        except RollstreamError as error:
            if not ended.done():
                ended.set_result(error)

    tasks = [
        gateway.tasks.create_task(follow(), name="results"),
        gateway.tasks.create_task(_sweeping(gateway, stop), name="sweep"),
        gateway.tasks.create_task(gateway.events.follow(stop), name="events"),
    ]
    try:
        yield ended
    finally:
        stop.set()
        for task in tasks:
            task.cancel()
        await gateway.steps.close()
        await gateway.work.close()


async def _sweeping(gateway: Gateway, stop: asyncio.Event) -> None:
    shortest_s = min(gateway.settings.keep_delivered_s, gateway.settings.keep_unasked_s)
    period_s = min(SWEEP_S, max(0.1, shortest_s / 4))
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(period_s):
                await stop.wait()
        try:
            gone = await gateway.work.sweep()
            await gateway.memory.renew()
        except ClientClosed:
            return
        except (BrokerError, RollstreamError) as error:
            log.warning("sweep_failed", error=str(error))
            continue
        if gone:
            log.info("results_let_go", count=gone)


# ---- leaving


async def _until_told(gateway: Gateway, shutdown: Shutdown, ended: asyncio.Future[Exception]) -> int:
    told = asyncio.create_task(shutdown.stop.wait(), name="stop")
    try:
        await asyncio.wait((told, ended), return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
    if not ended.done():
        return EXIT_OK
    gateway.farewell = refusal_of(ended.result())
    log.error("run_lost", run=gateway.run.id, why=gateway.farewell.detail)
    gateway.leaving.set()
    return EXIT_FENCED


async def _leave(gateway: Gateway, application: GatewayApplication, shutdown: Shutdown) -> None:
    gateway.draining.set()
    log.info("gateway_drains", calls=application.calls, grace_s=gateway.settings.grace_s)
    if not gateway.leaving.is_set():
        waits = [asyncio.create_task(event.wait(), name="drain") for event in (application.idle, shutdown.hurry)]
        try:
            await asyncio.wait(waits, timeout=gateway.settings.grace_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
    gateway.leaving.set()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_ANSWERS_S):
            await application.idle.wait()


__all__ = ["EXIT_FENCED", "EXIT_OK", "Listening", "serve"]
