"""The launcher of a node: its processes and their sizes, what it looks at, and the drain by stage, in the life that all launchers have.

lock on this machine -> Redis -> name in Redis -> what a dead predecessor left -> processes -> ... -> drain -> name given up
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import redis
import structlog

from ops.metrics.node_listener import NodeListener
from ops.metrics.settings import MetricsSettings
from ops.node.beside import beside
from ops.node.life import Life, tell_crash
from ops.node.opening import OpenNode, launch
from ops.node.processes import SERVICE, Commands
from ops.node.restarts import RestartPolicy
from ops.node.settings import NodeSettings
from ops.node.sizes import Size, plan_change
from ops.node.supervision import CrashLoop, Supervision
from pipeline.errors import BrokerError, InvalidRequest
from pipeline.file_systems import nearest_existing
from pipeline.keys import Keys
from pipeline.logs import redact_text
from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.scripts import Scripts
from pipeline.scripts.node_calls import Asked
from pipeline.scripts.runner import Arg
from pipeline.usable_cores import usable_cores
from workers.sandbox.images import ImageSettings
from workers.sandbox.service import RemoteSandboxes, ServiceNotThere
from workers.sandbox.service.settings import SandboxSettings
from workers.settings import WorkerSettings

log = structlog.get_logger(__name__)

LOOK_S = 0.5
"""Between two looks for a service that does not answer, and whether all processes are there."""
DISK_LOOK_S = 30.0


@dataclass(slots=True, kw_only=True)
class NodeState:
    """What changes, of what only a node says of itself."""

    sizes: dict[Stage, Size]
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

    async def run(node: OpenNode) -> int:
        commands = Commands(node=settings.node_name, grace_s=settings.grace_s, config=config, log_level=log_level)
        return await Launcher(node, commands, config=config).run()

    return await launch(settings, config, run)


class Launcher:
    """A node's: what it keeps, looks at, and says of it."""

    def __init__(self, node: OpenNode, commands: Commands, *, config: Path | None) -> None:
        self._settings, self._queue, self._client, self._shutdown = node.settings, node.queue, node.client, node.shutdown
        self._commands = commands
        self._life = Life(node, fields=self._fields, on_asked=self._on_asked, on_change=lambda: self._metrics.on_change())
        self._sandboxes = SandboxSettings.load(config)
        self._has_service = WorkerSettings.load(config, stage=Stage.EVAL).sandboxes
        self._image_dir = ImageSettings.load(config).node_dir or self._life.folders.scratch / "images"
        self._keys = Keys.of_shard(node.queue.namespace, 0)
        cores = usable_cores()
        self._now = NodeState(sizes={stage: node.settings.size(stage, cores) for stage in Stage})
        self._supervision: Supervision | None = None
        self._metrics = NodeListener(
            MetricsSettings.load(config),
            node.settings.metrics_port,
            node.queue.namespace,
            node.settings.node_name,
            node.files.measures,
            lambda: self._life.processes,
        )

    async def run(self) -> int:
        """From the name in Redis to its end; returns the exit code.

        Raises:
            NodeTaken, StoppedWhileWaiting: nothing was started.
        """
        async with self._metrics, self._life.named():
            return await self._run()

    async def _run(self) -> int:
        life = self._life
        environment = {"ROLLSTREAM_SANDBOX_AUTOSTART": "false", **self._metrics.begin()}
        with life.supervised(RestartPolicy(crashes=self._settings.crashes), environment) as supervision:
            self._supervision = supervision
            if self._has_service:
                supervision.start(self._commands.service())
            for stage in Stage:
                self._resize(stage, self._now.sizes[stage])
            if self._settings.supervisor:
                supervision.start(self._commands.supervisor())
            log.info("node_starts", node=life.name, **{stage.value: str(self._now.sizes[stage]) for stage in Stage}, logs=str(life.logs))
            async with beside(life.speak(), life.until_end(), self._look_at_service(), self._look_at_disks(), self._until_up()):
                await life.keep()
                log.info("node_drains", node=life.name, why=life.why, grace_s=self._settings.grace_s)
                killed = await supervision.drain(
                    self._settings.grace_s, self._shutdown.hurry, lane_waits=None if life.has_lost_name else self._lane_waits
                )
        if not life.has_lost_name:
            await self._close_lane()
        if life.failed is None:
            self._metrics.end()
        code = await life.leave(killed)
        log.info("node_ended", node=life.name, state=life.state, why=life.why)
        if life.failed is not None:
            _tell_crash(life.failed)
        return code

    # ---- what is asked of it

    def _on_asked(self, asked: Asked) -> None:
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
        self._life.tell()

    async def _look_at_disks(self) -> None:
        while True:
            self._now.free = await asyncio.to_thread(_free, {"scratch.free": self._life.folders.scratch, "images.free": self._image_dir})
            await asyncio.sleep(DISK_LOOK_S)

    async def _until_up(self) -> None:
        """All processes are there once: the service answers, and each worker has its name."""
        while True:
            if await self._is_up():
                break
            await asyncio.sleep(LOOK_S)
        if self._life.come_up():
            sizes = {stage.value: self._slots(stage) for stage in Stage}
            log.info("node_up", node=self._life.name, **sizes, sandboxes=self._now.backend or "none")

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

    async def _close_lane(self) -> None:
        """Nobody reads it any more: what waits there goes back at the next round of a janitor, and not once the last beat has lapsed."""
        with contextlib.suppress(BrokerError, redis.RedisError):
            for shard in range(self._queue.shards):
                scripts = Scripts(self._client, Keys.of_shard(self._queue.namespace, shard))
                await scripts.beat_node(self._life.name, "", live_ms=1, reads_lane=True, leaving=True)

    # ---- what is said of it

    def _slots(self, stage: Stage) -> int:
        return sum(each.plan.slots for each in self._life.processes if each.plan.stage is stage and each.state == "up" and each.runs)

    def _fields(self) -> Mapping[str, Arg]:
        now = self._now
        fields: dict[str, Arg] = {
            "backend": now.backend,
            "classes": ",".join(now.classes),
            "degraded": redact_text(now.degraded),
            "metrics": self._metrics.url,
            **now.free,
        }
        for stage in Stage:
            fields[f"size.{stage.value}"] = str(now.sizes[stage])
            fields[f"slots.{stage.value}"] = self._slots(stage)
        return fields


def _free(folders: Mapping[str, Path]) -> dict[str, int]:
    found = {}
    for name, folder in folders.items():
        with contextlib.suppress(OSError):
            found[name] = shutil.disk_usage(nearest_existing(folder)).free
    return found


def _tell_crash(failed: CrashLoop) -> None:
    tell_crash("the node", failed)
    if failed.crash.name == SERVICE:
        print("Where no sandboxes are to be had, ROLLSTREAM_WORKER_SANDBOXES=false serves the tasks that need none.", file=sys.stderr)
