"""The process of the node service, from its locks to its end.

1. One service a run folder and one a scratch folder: an flock on each, which ends with the process. A second one says who holds it.
2. It begins by ending what an earlier life left below its scratch folder, then opens its socket: who can connect meets no old sandbox.
3. SIGTERM: nobody new is heard, attachments have `grace_s` to end by themselves, the rest is ended, and nothing is left. A second SIGTERM
   ends the rest at once.
4. Started by workers for themselves (`while_used_s`), it ends when nobody has been connected for so long: the last worker of the node takes
   it along, however that worker ended, also when that was before it could connect (`abandoned`).
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from pipeline.embedded.locks import FileLock, Mode
from pipeline.errors import RollstreamError
from pipeline.folders import make_private_folder
from workers.sandbox.base import Probe
from workers.sandbox.images import ImageSource
from workers.sandbox.local import LocalSandboxes
from workers.sandbox.local.backend import Backend
from workers.sandbox.service.node import NodeSandboxes
from workers.sandbox.service.server import SandboxServer
from workers.sandbox.service.settings import SANDBOXES, SandboxSettings
from workers.sandbox.service.wire import Message

log = structlog.get_logger(__name__)

LOCK_NAME = "sandbox.lock"
OPEN_FILES = 65_536
"""An attachment takes some six descriptors, and a system gives 1,024 unless it is asked: a node of many cores has more than that in RUN."""
FIRST_USE_S = 60.0
"""A service that a worker started for itself waits so long for that worker to connect."""


class AlreadyServed(RollstreamError):
    """Another service has this run folder or this scratch folder."""

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(
            f"{folder} is served already, by process {holder or '(unknown)'}: stop that one, or give this one folders of its own "
            "(ROLLSTREAM_SANDBOX_RUN_DIR and ROLLSTREAM_SANDBOX_SCRATCH_DIR)"
        )
        self.folder = folder


async def serve_sandboxes(
    settings: SandboxSettings,
    backend: Backend,
    probe: Probe,
    *,
    node: str,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    images: ImageSource | None = None,
    sweep_images: Callable[[], int] | None = None,
    while_used_s: float | None = None,
    abandoned: asyncio.Event | None = None,
) -> None:
    """Serves the sandboxes of this node until it is shut down, then leaves nothing.

    Args:
        probe: what was found of the backend; said to everybody who connects.
        stop: leave within the grace.
        hurry: leave now.
        images: where images come from; without it specs that name one are refused.
        sweep_images: as `NodeSandboxes` takes it.
        while_used_s: end when nobody has been connected for so long; None = only when told.
        abandoned: set when the worker that started this service for itself has ended; before it was used that is not waited for then.

    Raises:
        AlreadyServed
    """

    def told() -> Message:
        return {
            "backend": probe.backend,
            "isolation": sorted(word.value for word in probe.isolation),
            "backends": {probe.backend: {"works": probe.works, "why": probe.why}},
            "pid": os.getpid(),
        }

    _raise_open_files()
    async with AsyncExitStack() as stack:
        for folder, setting in ((settings.run, "ROLLSTREAM_SANDBOX_RUN_DIR"), (settings.scratch, "ROLLSTREAM_SANDBOX_SCRATCH_DIR")):
            make_private_folder(folder, setting)
            stack.enter_context(lock_folder(folder))
        local = await stack.enter_async_context(
            LocalSandboxes(
                backend,
                scratch_dir=settings.scratch / SANDBOXES,
                run_dir=settings.run,
                node=node,
                images=images,
                entry=settings.entry,
                keeps_spare=True,
            )
        )
        sandboxes = NodeSandboxes(local, settings, sweep_images=sweep_images)
        await sandboxes.sweep_earlier()
        await stack.enter_async_context(sandboxes)
        server = await stack.enter_async_context(SandboxServer(sandboxes, settings.run, told))
        log.info(
            "node_service_serves",
            node=node,
            backend=probe.backend,
            isolation=sorted(word.value for word in probe.isolation),
            epoch=sandboxes.epoch,
            socket=str(server.socket),
            scratch=str(local.scratch_dir),
            cgroups=dict(local.cgroups),
            entry=settings.entry,
            network_allow=list(settings.network_allow),
            pid=os.getpid(),
        )
        await _until_over(server, stop, while_used_s, abandoned or asyncio.Event())
        server.stop_listening()
        draining = asyncio.create_task(sandboxes.drain(settings.grace_s), name="drain")
        hurrying = asyncio.create_task(hurry.wait(), name="hurry")
        await asyncio.wait((draining, hurrying), return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if not draining.done():
            draining.cancel()
            await asyncio.wait((draining,))
            await sandboxes.drain(0.0)
        else:
            draining.result()
    log.info("node_service_ended", epoch=sandboxes.epoch)


def lock_folder(folder: Path) -> FileLock:
    """Holds a folder for this process; its number is in the file, for people.

    Raises:
        AlreadyServed
    """
    path = folder / LOCK_NAME
    lock = FileLock(path)
    if not lock.try_lock(Mode.EXCLUSIVE):
        lock.close()
        raise AlreadyServed(folder, path.read_text(encoding="ascii", errors="replace").strip())
    path.write_text(f"{os.getpid()}\n", encoding="ascii")
    return lock


def _raise_open_files() -> None:
    """As many as this process may have; holders give what they start the usual number again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _until_over(server: SandboxServer, stop: asyncio.Event, while_used_s: float | None, abandoned: asyncio.Event) -> None:
    stopped = asyncio.create_task(stop.wait(), name="stop")
    unused = asyncio.create_task(_until_unused(server, while_used_s, abandoned), name="unused")
    try:
        await asyncio.wait((stopped, unused), return_when=asyncio.FIRST_COMPLETED)
        if unused.done():
            unused.result()
            log.info("node_service_unused", what="nobody is connected any more")
    finally:
        stopped.cancel()
        unused.cancel()


async def _until_unused(server: SandboxServer, while_used_s: float | None, abandoned: asyncio.Event) -> None:
    """Until nobody has been connected for a while; for ever without one."""
    if while_used_s is None:
        await asyncio.Event().wait()
        return
    awaited = [asyncio.create_task(event.wait(), name="first use") for event in (server.used, abandoned)]
    try:
        await asyncio.wait(awaited, timeout=FIRST_USE_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in awaited:
            task.cancel()
    while True:
        await server.unused.wait()
        try:
            async with asyncio.timeout(while_used_s):
                await server.used.wait()
        except TimeoutError:
            return
