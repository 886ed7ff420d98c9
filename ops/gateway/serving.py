"""A gateway process: it takes its run, listens, serves, and leaves in two steps.

Protocol of leaving. SIGTERM: no job is accepted, streams of events end, open calls go on; after the grace, at a second SIGTERM, or when
another client took the run, whoever still waits is told where the result will be. Then connections close and the run is let go: jobs go
on without a gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
from aiohttp import web

from ops.gateway.access import Guard
from ops.gateway.answers import LargeAnswers
from ops.gateway.application import GatewayApplication
from ops.gateway.bodies import BodyBudget
from ops.gateway.connections import ACCEPT_BACKLOG, Connections
from ops.gateway.door import Door
from ops.gateway.events import BLOCK_S, Events
from ops.gateway.memory import Memory
from ops.gateway.metrics import Metrics
from ops.gateway.original_request import OriginalRequests
from ops.gateway.refusals import refusal_of
from ops.gateway.settings import GatewaySettings
from ops.gateway.state import Gateway
from ops.gateway.steps import Steps
from ops.gateway.tools import TaskTools
from ops.gateway.work import Work
from pipeline.errors import BrokerError, InvalidRequest, RollstreamError
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
CLOSE_S = 0.25
LINGER_S = 1.0
"""What is left of a refused body is read for so long, so that its client comes to read the refusal."""


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
        listener = stack.enter_context(_listening_socket(settings))
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
        async with _background(gateway) as ended, _listening(gateway, application, listener) as url:
            needs_token = bool(guard.files)
            announce(Listening(url=url, run=run.id, incarnation=run.incarnation, pid=os.getpid(), needs_token=needs_token))
            log.info(
                "gateway_serves",
                url=url,
                run=run.id,
                incarnation=run.incarnation,
                started=gateway.door.is_open,
                asks_for_tokens=needs_token,
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


# ---- listening


@contextlib.contextmanager
def _listening_socket(settings: GatewaySettings) -> Iterator[socket.socket]:
    """The socket, bound before anything else is done: an address that is taken must not cost the run its other gateway."""
    try:
        listener = _unix_socket(settings.socket) if settings.socket is not None else _tcp_socket(settings.host, settings.port)
    except OSError as error:
        where = settings.socket or f"{settings.host}:{settings.port}"
        raise InvalidRequest(
            f"cannot listen on {where}: {error.strerror or error}. Choose another, or port 0", field="gateway.port"
        ) from None
    try:
        yield listener
    finally:
        listener.close()
        if settings.socket is not None:
            settings.socket.unlink(missing_ok=True)


def _tcp_socket(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _unix_socket(path: Path) -> socket.socket:
    """A socket for its owner. One that a dead process left is replaced; one that somebody listens on is not."""
    if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            try:
                other.connect(str(path))
            except OSError:
                path.unlink()
            else:
                raise OSError(98, "another process listens there")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def _silent() -> logging.Logger:
    """For what is no HTTP: clients could fill a log with it. What goes wrong in a call is logged where it becomes an answer."""
    logger = logging.getLogger("ops.gateway.http")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger


@asynccontextmanager
async def _listening(gateway: Gateway, application: GatewayApplication, listener: socket.socket) -> AsyncIterator[str]:
    """Takes connections while the block runs; gives the address."""
    settings = gateway.settings
    runner = web.AppRunner(
        application.app,
        handler_cancellation=True,  # the end of a client's connection ends its call, which then decides what that means to its job
        keepalive_timeout=settings.idle_s,
        access_log=None,
        shutdown_timeout=CLOSE_S,
        lingering_time=LINGER_S,
        logger=_silent(),
        auto_decompress=False,
    )
    await runner.setup()
    assert runner.server is not None
    gateway.connections = Connections(runner.server, most=settings.max_connections, head_s=settings.head_s)
    loop = asyncio.get_running_loop()
    if settings.socket is not None:
        server = await loop.create_unix_server(gateway.connections, sock=listener, backlog=ACCEPT_BACKLOG)
        url = f"unix:{settings.socket}"
    else:
        server = await loop.create_server(gateway.connections, sock=listener, backlog=ACCEPT_BACKLOG)
        host, port = listener.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    try:
        yield url
    finally:
        server.close()
        gateway.connections.abort()
        await runner.cleanup()


__all__ = ["EXIT_FENCED", "EXIT_OK", "Listening", "serve"]
