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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
import structlog

from ops.llm_server.settings import VllmSettings
from ops.node.beside import beside
from ops.node.life import Life, tell_crash
from ops.node.opening import OpenNode, launch
from ops.node.processes import ProcessPlan
from ops.node.restarts import RestartPolicy
from ops.node.settings import NodeSettings
from ops.node.supervision import Process
from pipeline.scripts.runner import Arg

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

    async def run(node: OpenNode) -> int:
        return await ServersLauncher(node, plan, vllm, announce=announce).run()

    return await launch(settings, config, run)


class ServersLauncher:
    """That of inference servers: what it keeps, looks at, and says of it."""

    def __init__(self, node: OpenNode, plan: ServersPlan, vllm: VllmSettings, *, announce: Callable[[Sequence[str]], None]) -> None:
        self._settings, self._shutdown = node.settings, node.shutdown
        self._plan, self._vllm, self._announce = plan, vllm, announce
        self._life = Life(node, fields=self._fields)
        self._told: dict[str, str] = {}
        """Server -> the last thing that was said of its start."""

    async def run(self) -> int:
        """From the name in Redis to its end; returns the exit code.

        Raises:
            NodeTaken, StoppedWhileWaiting: nothing was started.
        """
        async with self._life.named():
            return await self._run()

    async def _run(self) -> int:
        life, grace_s = self._life, self._settings.grace_s
        # a start takes minutes: what ends before the longest one is over has never served for long
        policy = RestartPolicy(crashes=self._settings.crashes, well_after_s=self._vllm.start_timeout_s + 60)
        with life.supervised(policy) as supervision:
            plans = self._plan.processes(life.logs, grace_s=grace_s, vllm_grace_s=self._vllm.grace_s)
            supervision.start(*plans)
            log.info("servers_start", node=life.name, run=self._plan.run, servers=len(plans), logs=str(life.logs))
            async with beside(life.speak(), life.until_end(), self._watch_starts()):
                await life.keep()
                log.info("servers_drain", node=life.name, why=life.why, grace_s=grace_s)
                killed = await supervision.end(grace_s, self._shutdown.hurry)
        code = await life.leave(killed)
        log.info("servers_ended", node=life.name, state=life.state, why=life.why)
        if life.failed is not None:
            tell_crash("the servers", life.failed)
        return code

    # ---- what it looks at

    async def _watch_starts(self) -> None:
        """Says how far each server is, also of one that is started again; announces them once all serve."""
        while True:
            addresses = [self._progress(each) for each in self._life.processes]
            if all(addresses) and self._life.come_up():
                log.info("servers_up", node=self._life.name, servers=addresses)
                self._announce(addresses)
            await asyncio.sleep(LOOK_S)

    def _progress(self, process: Process) -> str:
        """The address of a server that serves; empty before."""
        name, address = process.plan.name, self._address(process)
        said = address or process.child.last_lines().rpartition("\n")[2].strip()
        if said and self._told.get(name) != said and self._life.state in ("starting", "up"):
            self._told[name] = said
            log.info("server_serves" if address else "server_starts", server=name, **({"url": address} if address else {"what": said}))
        return address

    def _address(self, process: Process) -> str:
        if not process.runs:
            return ""
        with suppress(OSError, orjson.JSONDecodeError, KeyError, TypeError):
            told = orjson.loads(state_file(self._life.logs, process.plan.name).read_bytes())
            return str(told["url"]) if told["pid"] == process.pid else ""
        return ""

    # ---- what is said of it

    def _fields(self) -> Mapping[str, Arg]:
        addresses = [self._address(each) for each in self._life.processes]
        return {"serves": self._plan.run, "servers": " ".join(address for address in addresses if address)}
