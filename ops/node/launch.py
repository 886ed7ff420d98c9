"""The launcher of a node: wires name, processes, wishes and the drain together. What each part promises is told where it stands.

lock on this machine -> Redis -> name in Redis -> what a dead predecessor left -> processes -> ... -> drain -> name given up
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import redis
import structlog

from ops.child_processes import ChildProcesses
from ops.logs.keeper import LogKeeper
from ops.logs.places import scratch_folder
from ops.metrics.node_listener import NodeListener
from ops.metrics.settings import MetricsSettings
from ops.node.beside import beside, until_clock
from ops.node.files import FOLDER, NodeFiles, NodeTaken
from ops.node.handover import address_for_children
from ops.node.membership import Membership, launcher_fields
from ops.node.processes import SERVICE, Commands
from ops.node.restarts import RestartPolicy
from ops.node.settings import NodeSettings
from ops.node.sizes import Size, plan_change
from ops.node.supervision import CrashLoop, Supervision
from ops.node_process import join_queue
from pipeline.errors import BrokerError, InvalidRequest
from pipeline.file_systems import nearest_existing
from pipeline.folders import Folders, make_folder, make_private_folder
from pipeline.keys import Keys
from pipeline.layout import check_layout
from pipeline.logs import redact_text
from pipeline.messages import Stage
from pipeline.process import Shutdown, StoppedWhileWaiting, until_reached
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.scripts.node_calls import Asked, NodeScripts
from pipeline.scripts.runner import Arg
from pipeline.settings import QueueSettings
from pipeline.usable_cores import usable_cores
from workers.sandbox.images import ImageSettings
from workers.sandbox.service import RemoteSandboxes, ServiceNotThere
from workers.sandbox.service.settings import SandboxSettings
from workers.settings import WorkerSettings

log = structlog.get_logger(__name__)

EXIT_OK, EXIT_FAILED, EXIT_TAKEN = 0, 1, 4
LOOK_S = 0.5
"""Between two looks for a service that does not answer, and whether all processes are there."""
DISK_LOOK_S = 30.0


@dataclass(slots=True, kw_only=True)
class NodeState:
    """What changes, of what is said of a node."""

    state: str = "starting"
    why: str = ""
    sizes: dict[Stage, Size]
    ends_at_s: float | None
    backend: str = ""
    classes: tuple[str, ...] = ()
    degraded: str = ""
    free: Mapping[str, int] = field(default_factory=dict)
    """Disk -> bytes."""


async def run_node(settings: NodeSettings, config: Path | None, *, log_level: str = "info") -> int:
    """Runs a node until it is told to end; returns the exit code.

    Raises:
        InvalidRequest, BrokerMisused, FolderError: settings that cannot work; nothing was started, or everything has ended.
    """
    shutdown = Shutdown()
    shutdown.on_signals(launcher=True)
    shutdown.on_parent_exit()
    boot = secrets.token_hex(8)
    namespace = QueueSettings.load(config).namespace
    try:
        with NodeFiles(Folders.from_environment().run / FOLDER, namespace, settings.node_name, boot) as files:
            async with AsyncExitStack() as stack:
                queue = join_queue(stack, config)
                client = command_client(queue)
                stack.push_async_callback(client.aclose)
                await until_reached(lambda: check_layout(client, queue), shutdown.stop)
                commands = Commands(node=settings.node_name, grace_s=settings.grace_s, config=config, log_level=log_level)
                address = stack.enter_context(address_for_children(queue, files.password_file))
                launcher = Launcher(settings, queue, client, files, boot, shutdown, commands, config=config, environment=address)
                return await launcher.run()
    except NodeTaken as taken:
        print(f"rollstream: {taken}", file=sys.stderr)
        return EXIT_TAKEN
    except StoppedWhileWaiting:
        return EXIT_OK


class Launcher:
    """One life of a node's launcher. It has the name on this machine already."""

    def __init__(
        self,
        settings: NodeSettings,
        queue: QueueSettings,
        client: AsyncClient,
        files: NodeFiles,
        boot: str,
        shutdown: Shutdown,
        commands: Commands,
        *,
        config: Path | None,
        environment: Mapping[str, str],
    ) -> None:
        self._settings, self._queue, self._client, self._files, self._shutdown = settings, queue, client, files, shutdown
        self._cores = usable_cores()
        self._folders = Folders.from_environment()
        self._sandboxes = SandboxSettings.load(config)
        self._has_service = WorkerSettings.load(config, stage=Stage.EVAL).sandboxes
        self._image_dir = ImageSettings.load(config).node_dir or self._folders.scratch / "images"
        make_private_folder(self._folders.scratch, "ROLLSTREAM_SCRATCH_DIR")
        self._logs = make_folder(scratch_folder(self._folders, settings.node_name))
        self._log = LogKeeper.of_node(self._folders, settings.node_name, max_mib=settings.log_max_mib, files=settings.log_files)
        self._commands = commands
        self._environment = {"ROLLSTREAM_SANDBOX_AUTOSTART": "false", **self._log.environment, **environment}
        self._keys = Keys.of_shard(queue.namespace, 0)
        self._now = NodeState(
            sizes={stage: settings.size(stage, self._cores) for stage in Stage},
            ends_at_s=settings.ends_at_s(now_s=time.time()),
        )
        self._has_lost_name = False
        self._supervision: Supervision | None = None
        self._metrics = NodeListener(
            MetricsSettings.load(config),
            settings.metrics_port,
            queue.namespace,
            settings.node_name,
            files.measures,
            lambda: () if self._supervision is None else self._supervision.processes,
        )
        self._membership = Membership(
            NodeScripts(client, queue.namespace),
            settings.node_name,
            boot,
            lease_s=queue.lease_s,
            fields=self._fields,
            on_asked=self._on_asked,
            on_lost=self._on_lost,
        )

    async def run(self) -> int:
        """From the name in Redis to its end; returns the exit code.

        Raises:
            NodeTaken, StoppedWhileWaiting: nothing was started.
        """
        async with self._metrics:
            await self._membership.take(self._files.dead_boot, self._shutdown.stop)
            with self._log:
                return await self._run()

    async def _run(self) -> int:
        if ended := await asyncio.to_thread(self._files.end_predecessor):
            log.warning("predecessor_cleaned_up", ended=ended, what="a launcher of this node was killed, and these outlived it")
        with ChildProcesses(self._logs, {**self._environment, **self._metrics.begin()}) as children:
            policy = RestartPolicy(crashes=self._settings.crashes)
            self._supervision = supervision = Supervision(children, policy, on_change=self._on_change, said_by=self._log.said_by)
            if self._has_service:
                supervision.start(self._commands.service())
            for stage in Stage:
                self._resize(stage, self._now.sizes[stage])
            if self._settings.supervisor:
                supervision.start(self._commands.supervisor())
            log.info(
                "node_starts",
                node=self._settings.node_name,
                **{stage.value: str(self._now.sizes[stage]) for stage in Stage},
                logs=str(self._logs),
            )
            async with beside(self._membership.run(), self._look_at_service(), self._look_at_disks(), self._until_up(), self._until_end()):
                failed = await self._keep(supervision)
                killed = await supervision.drain(
                    self._settings.grace_s, self._shutdown.hurry, lane_waits=None if self._has_lost_name else self._lane_waits
                )
            self._now.state = "failed" if failed or killed else "ended"
            if killed:
                self._now.why = f"{self._now.why or 'told to end'}; killed: {', '.join(killed)}"
        self._files.remove_note()
        if failed is None:
            self._metrics.end()
        await self._membership.beat(leaving=True)
        log.info("node_ended", node=self._settings.node_name, state=self._now.state, why=self._now.why)
        if failed is not None:
            _tell_crash(failed)
        if failed is not None or killed:
            return EXIT_FAILED
        return EXIT_TAKEN if self._has_lost_name else EXIT_OK

    async def _keep(self, supervision: Supervision) -> CrashLoop | None:
        """Until the node is to end; says what crashed, if that is why."""
        failed: CrashLoop | None = None
        try:
            await supervision.run(self._shutdown.stop)
            self._now.state, self._now.why = "draining", self._now.why or "told to end"
        except CrashLoop as error:
            failed = error
            self._now.state, self._now.why = "failed", str(error)
        log.info("node_drains", node=self._settings.node_name, why=self._now.why, grace_s=self._settings.grace_s)
        self._membership.tell()
        return failed

    # ---- what is asked of it

    def _on_asked(self, asked: Asked) -> None:
        if asked.drain and not self._shutdown.stop.is_set():
            self._end("drained by `rollstream node drain`")
        for stage, text in zip(Stage, asked.sizes, strict=True):
            if not text:
                continue
            try:
                size = Size.parse(text)
            except InvalidRequest as error:
                log.warning("size_not_taken", stage=stage.value, error=str(error))
                continue
            if size != self._now.sizes[stage] and not self._shutdown.stop.is_set():
                log.info("node_scales", stage=stage.value, before=str(self._now.sizes[stage]), now=text)
                self._now.sizes[stage] = size
                self._resize(stage, size)

    def _on_lost(self, host: str) -> None:
        if not self._has_lost_name:
            log.error("name_lost", node=self._settings.node_name, to=host, what="another launcher has this node's name; leaving")
        self._has_lost_name = True
        self._end(f"a launcher on {host} has the name")
        self._shutdown.hurry.set()

    def _end(self, why: str) -> None:
        self._now.why = self._now.why or why
        self._shutdown.stop.set()

    def _resize(self, stage: Stage, size: Size) -> None:
        assert self._supervision is not None
        change = plan_change(stage, size, self._supervision.slots_of(stage), self._supervision.indexes_of(stage))
        self._supervision.start(*(self._commands.worker(stage, index, slots) for index, slots in change.start.items()))
        self._supervision.retire(*(f"{stage.value}-{index}" for index in change.stop))

    # ---- what it looks at

    async def _look_at_service(self) -> None:
        """What the sandbox service offers, whichever of its lives it is in."""
        while self._has_service:
            with contextlib.suppress(ServiceNotThere):
                async with RemoteSandboxes(self._sandboxes.run) as service:
                    self._now.backend = service.backend
                    self._now.classes = tuple(sorted(word.value for word in service.isolation))
                    service.on_degraded(self._on_degraded)
                    self._on_degraded(service.degraded)
                    await asyncio.wait([service.lost])
            self._now.backend, self._now.classes, self._now.degraded = "", (), ""
            await asyncio.sleep(LOOK_S)

    def _on_degraded(self, why: str) -> None:
        self._now.degraded = why
        self._membership.tell()

    async def _look_at_disks(self) -> None:
        while True:
            self._now.free = await asyncio.to_thread(_free, {"scratch.free": self._folders.scratch, "images.free": self._image_dir})
            await asyncio.sleep(DISK_LOOK_S)

    async def _until_up(self) -> None:
        """All processes are there once: the service answers, and each worker has its name."""
        while True:
            if await self._is_up():
                break
            await asyncio.sleep(LOOK_S)
        if self._now.state == "starting":
            self._now.state = "up"
            sizes = {stage.value: self._slots(stage) for stage in Stage}
            log.info("node_up", node=self._settings.node_name, **sizes, sandboxes=self._now.backend or "none")
            self._membership.tell()

    async def _is_up(self) -> bool:
        assert self._supervision is not None
        if self._has_service and not self._now.backend:
            return False
        names = [
            self._keys.worker(f"{stage.value}-{self._settings.node_name}-{index}")
            for stage in Stage
            for index in self._supervision.slots_of(stage)
        ]
        with contextlib.suppress(BrokerError, redis.RedisError):
            return not names or int(await ask(self._client, "EXISTS", *names)) == len(names)
        return False

    async def _until_end(self) -> None:
        """Drains a grace before the node's end."""
        if self._now.ends_at_s is not None:
            await until_clock(self._now.ends_at_s - self._settings.grace_s)
            self._end("its end is near")

    async def _lane_waits(self) -> bool:
        """Whether something that nobody has taken up waits in the node's lane; False without an answer."""
        with contextlib.suppress(BrokerError, redis.RedisError):
            for shard in range(self._queue.shards):
                lane = Keys.of_shard(self._queue.namespace, shard).stage_stream(Stage.RUN, node=self._settings.node_name)
                if not await ask(self._client, "EXISTS", lane):
                    continue
                taken = await ask(self._client, "XPENDING", lane, Stage.RUN.value)
                if int(await ask(self._client, "XLEN", lane)) > int(taken["pending"]):
                    return True
        return False

    # ---- what is said of it

    def _on_change(self) -> None:
        """Processes came or went."""
        if self._supervision is None:
            return
        running = {each.plan.name: each.pid for each in self._supervision.processes if each.runs}
        try:
            self._files.write(running, logs=self._logs, grace_s=self._settings.grace_s)
        except OSError as error:
            log.warning(
                "note_not_written", error=str(error), what="after a kill -9 of this launcher its successor ends less of what is left"
            )
        self._metrics.on_change()
        self._membership.tell()

    def _slots(self, stage: Stage) -> int:
        assert self._supervision is not None
        return sum(each.plan.slots for each in self._supervision.processes if each.plan.stage is stage and each.state == "up" and each.runs)

    def _fields(self) -> Mapping[str, Arg]:
        now, supervision = self._now, self._supervision
        fields: dict[str, Arg] = {
            **launcher_fields(now.state, now.why, ends_at_s=now.ends_at_s, grace_s=self._settings.grace_s, supervision=supervision),
            "backend": now.backend,
            "classes": ",".join(now.classes),
            "degraded": redact_text(now.degraded),
            "metrics": self._metrics.url,
            **now.free,
        }
        for stage in Stage:
            fields[f"size.{stage.value}"] = str(now.sizes[stage])
            fields[f"slots.{stage.value}"] = 0 if supervision is None else self._slots(stage)
        return fields


def _free(folders: Mapping[str, Path]) -> dict[str, int]:
    found = {}
    for name, folder in folders.items():
        with contextlib.suppress(OSError):
            found[name] = shutil.disk_usage(nearest_existing(folder)).free
    return found


def _tell_crash(failed: CrashLoop) -> None:
    crash = failed.crash
    print(f"rollstream: the node ended: {failed}. Its last lines:\n{crash.tail}", file=sys.stderr)
    if crash.name == SERVICE:
        print("Where no sandboxes are to be had, ROLLSTREAM_WORKER_SANDBOXES=false serves the tasks that need none.", file=sys.stderr)
