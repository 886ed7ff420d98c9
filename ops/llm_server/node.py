"""The launcher of a node's inference servers (`ops/launch llm`): a child `rollstream llm serve` for each, kept as a node's processes are.

    GPUs divided -> name of the node -> N x `llm serve` (port, health, label, place in the run) -> ... -> all told to end -> name given up

Invariants, beside those of ADR 27 that hold for every launcher (name, crashes, notes, signals):

1. A GPU is given to one server. Each server has as many, side by side in the order in which they are named.
2. Servers need no order: all are told to end at once. Each then drains for what the grace leaves after vLLM's own end, and leaves its run
   before it ends. One that was killed leaves its run when its successor serves.
3. The key goes from file to vLLM's environment. No argument, log or line in Redis has it.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
import structlog

from ops.child_processes import ChildProcesses
from ops.llm_server.settings import VllmSettings
from ops.logs.keeper import LogKeeper
from ops.logs.places import scratch_folder
from ops.node.beside import beside, until_clock
from ops.node.files import FOLDER, NodeFiles, NodeTaken
from ops.node.handover import address_for_children
from ops.node.launch import EXIT_FAILED, EXIT_OK, EXIT_TAKEN
from ops.node.membership import Membership, launcher_fields
from ops.node.processes import ProcessPlan
from ops.node.restarts import RestartPolicy
from ops.node.settings import NodeSettings
from ops.node.supervision import CrashLoop, Process, Supervision
from ops.node_process import join_queue
from pipeline.folders import Folders, make_folder, make_private_folder
from pipeline.layout import check_layout
from pipeline.process import Shutdown, StoppedWhileWaiting, until_reached
from pipeline.redis_client import command_client
from pipeline.scripts.node_calls import Asked, NodeScripts
from pipeline.scripts.runner import Arg
from pipeline.settings import QueueSettings

log = structlog.get_logger(__name__)

LOOK_S = 0.5
"""Between two looks at how far servers are."""
END_MARGIN_S = 5.0
"""Of the grace, for what `llm serve` does beside draining and ending vLLM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersPlan:
    """What `rollstream llm node` was asked for."""

    gpus: Sequence[tuple[str, ...]]
    """Of each server; empty tuples on the CPU."""
    serve: tuple[str, ...]
    """Options of `rollstream llm serve` that all have."""
    extra: tuple[str, ...] = ()
    """Arguments for vLLM."""
    first_port: int = 0
    """Of the first server, the next one for the next; 0 = free ones."""
    run: str

    def processes(self, logs: Path, *, grace_s: float, vllm_grace_s: float) -> list[ProcessPlan]:
        """The commands of the servers.

        Args:
            logs: folder of the node.
            grace_s: what the end of the whole node may take.
            vllm_grace_s: of it, for vLLM's own end.
        """
        drain_s = max(0.0, grace_s - vllm_grace_s - END_MARGIN_S)
        plans = []
        for index, gpus in enumerate(self.gpus):
            name = f"llm-{index}"
            words = ["llm", "serve", "--run", self.run, "--state-file", str(state_file(logs, name)), "--log-dir", str(logs / name)]
            words += ["--port", str(self.first_port + index if self.first_port else 0), "--drain-s", f"{drain_s:g}", *self.serve]
            words += ["--gpus", ",".join(gpus)] if gpus else []
            words += ["--", *self.extra] if self.extra else []
            plans.append(ProcessPlan(name, tuple(words)))
        return plans


def state_file(logs: Path, name: str) -> Path:
    """Where a server of the node tells its address."""
    return logs / f"{name}.json"


async def run_servers(
    plan: ServersPlan, settings: NodeSettings, vllm: VllmSettings, config: Path | None, *, announce: Callable[[Sequence[str]], None]
) -> int:
    """Runs them until it is told to end; returns the exit code.

    Args:
        settings: name of the node, its grace and its end.
        announce: told the addresses, once all serve.

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
                address = stack.enter_context(address_for_children(queue, files.password_file))
                scripts = NodeScripts(client, queue.namespace)
                launcher = ServersLauncher(plan, settings, vllm, files, boot, shutdown, address, announce=announce)
                return await launcher.run(scripts, lease_s=queue.lease_s)
    except NodeTaken as taken:
        print(f"rollstream: {taken}", file=sys.stderr)
        return EXIT_TAKEN
    except StoppedWhileWaiting:
        return EXIT_OK


class ServersLauncher:
    """One life of it. It has the name on this machine already."""

    def __init__(
        self,
        plan: ServersPlan,
        settings: NodeSettings,
        vllm: VllmSettings,
        files: NodeFiles,
        boot: str,
        shutdown: Shutdown,
        environment: Mapping[str, str],
        *,
        announce: Callable[[Sequence[str]], None],
    ) -> None:
        self._plan, self._settings, self._vllm, self._files, self._boot = plan, settings, vllm, files, boot
        self._shutdown, self._environment, self._announce = shutdown, environment, announce
        folders = Folders.from_environment()
        make_private_folder(folders.scratch, "ROLLSTREAM_SCRATCH_DIR")
        self._logs = make_folder(scratch_folder(folders, settings.node_name))
        self._log = LogKeeper.of_node(folders, settings.node_name, max_mib=settings.log_max_mib, files=settings.log_files)
        self._state, self._why = "starting", ""
        self._ends_at_s = settings.ends_at_s(now_s=time.time())
        self._supervision: Supervision | None = None
        self._membership: Membership | None = None
        self._has_lost_name = False
        self._told: dict[str, str] = {}
        """Server -> the last thing that was said of its start."""

    async def run(self, scripts: NodeScripts, *, lease_s: float) -> int:
        """From the name in Redis to its end; returns the exit code.

        Raises:
            NodeTaken, StoppedWhileWaiting: nothing was started.
        """
        name = self._settings.node_name
        self._membership = membership = Membership(
            scripts, name, self._boot, lease_s=lease_s, fields=self._fields, on_asked=self._on_asked, on_lost=self._on_lost
        )
        await membership.take(self._files.dead_boot, self._shutdown.stop)
        with self._log:
            return await self._run(membership)

    async def _run(self, membership: Membership) -> int:
        name = self._settings.node_name
        if ended := await asyncio.to_thread(self._files.end_predecessor):
            log.warning("predecessor_cleaned_up", ended=ended, what="a launcher of this node was killed, and these outlived it")
        # a start takes minutes: what ends before the longest one is over has never served for long
        policy = RestartPolicy(crashes=self._settings.crashes, well_after_s=self._vllm.start_timeout_s + 60)
        with ChildProcesses(self._logs, {**self._environment, **self._log.environment}) as children:
            self._supervision = supervision = Supervision(children, policy, on_change=self._on_change, said_by=self._log.said_by)
            plans = self._plan.processes(self._logs, grace_s=self._settings.grace_s, vllm_grace_s=self._vllm.grace_s)
            supervision.start(*plans)
            log.info("servers_start", node=name, run=self._plan.run, servers=len(plans), logs=str(self._logs))
            async with beside(membership.run(), self._watch_starts(supervision), self._until_end()):
                failed = await self._keep(supervision)
                killed = await supervision.end(self._settings.grace_s, self._shutdown.hurry)
        self._state = "failed" if failed or killed else "ended"
        if killed:
            self._why = f"{self._why}; killed: {', '.join(killed)}"
        self._files.remove_note()
        await membership.beat(leaving=True)
        log.info("servers_ended", node=name, state=self._state, why=self._why)
        if failed is not None:
            print(f"rollstream: the servers ended: {failed}. Its last lines:\n{failed.crash.tail}", file=sys.stderr)
        if failed is not None or killed:
            return EXIT_FAILED
        return EXIT_TAKEN if self._has_lost_name else EXIT_OK

    async def _keep(self, supervision: Supervision) -> CrashLoop | None:
        """Until they are to end; says what crashed, if that is why."""
        failed: CrashLoop | None = None
        try:
            await supervision.run(self._shutdown.stop)
            self._state, self._why = "draining", self._why or "told to end"
        except CrashLoop as error:
            failed = error
            self._state, self._why = "failed", str(error)
        log.info("servers_drain", node=self._settings.node_name, why=self._why, grace_s=self._settings.grace_s)
        self._tell()
        return failed

    # ---- what it looks at

    async def _watch_starts(self, supervision: Supervision) -> None:
        """Says how far each server is, also of one that is started again; announces them once all serve."""
        is_announced = False
        while True:
            addresses = [self._progress(each) for each in supervision.processes]
            if not is_announced and self._state == "starting" and all(addresses):
                is_announced, self._state = True, "up"
                log.info("servers_up", node=self._settings.node_name, servers=addresses)
                self._announce(addresses)
                self._tell()
            await asyncio.sleep(LOOK_S)

    def _progress(self, process: Process) -> str:
        """The address of a server that serves; empty before."""
        name, address = process.plan.name, self._address(process)
        said = address or process.child.last_lines().rpartition("\n")[2].strip()
        if said and self._told.get(name) != said and self._state in ("starting", "up"):
            self._told[name] = said
            log.info("server_serves" if address else "server_starts", server=name, **({"url": address} if address else {"what": said}))
        return address

    def _address(self, process: Process) -> str:
        if not process.runs:
            return ""
        with suppress(OSError, orjson.JSONDecodeError, KeyError, TypeError):
            told = orjson.loads(state_file(self._logs, process.plan.name).read_bytes())
            return str(told["url"]) if told["pid"] == process.pid else ""
        return ""

    async def _until_end(self) -> None:
        """Drains a grace before the end."""
        if self._ends_at_s is not None:
            await until_clock(self._ends_at_s - self._settings.grace_s)
            self._end("its end is near")

    # ---- what is asked and said

    def _on_asked(self, asked: Asked) -> None:
        if asked.drain:
            self._end("drained by `rollstream node drain`")

    def _on_lost(self, host: str) -> None:
        self._has_lost_name = True
        self._end(f"a launcher on {host} has the name")
        self._shutdown.hurry.set()

    def _end(self, why: str) -> None:
        self._why = self._why or why
        self._shutdown.stop.set()

    def _on_change(self) -> None:
        if self._supervision is None:
            return
        running = {each.plan.name: each.pid for each in self._supervision.processes if each.runs}
        try:
            self._files.write(running, logs=self._logs, grace_s=self._settings.grace_s)
        except OSError as error:
            log.warning(
                "note_not_written", error=str(error), what="after a kill -9 of this launcher its successor ends less of what is left"
            )
        self._tell()

    def _tell(self) -> None:
        if self._membership is not None:
            self._membership.tell()

    def _fields(self) -> Mapping[str, Arg]:
        supervision = self._supervision
        addresses = [] if supervision is None else [self._address(each) for each in supervision.processes]
        return {
            **launcher_fields(self._state, self._why, ends_at_s=self._ends_at_s, grace_s=self._settings.grace_s, supervision=supervision),
            "serves": self._plan.run,
            "servers": " ".join(address for address in addresses if address),
        }
