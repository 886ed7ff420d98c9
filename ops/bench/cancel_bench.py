"""How fast a cancel is: 256 jobs running in four worker processes, some in long model calls, most in short ones that follow each other,
some in tool calls in sandboxes; cancelled as 32 groups and as a run, in turn.

The clock starts before the cancel is sent. Model calls are timed where they arrive, at the server; tool calls where they pass the gate;
settled jobs by the ids of their records. All clocks are of this machine.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from ops.bench.cancel_task import TASK
from ops.bench.report import Report
from ops.bench.servers import bench_server, bench_server_kind, version_of
from ops.child_processes import ChildProcesses
from pipeline import codec
from pipeline.inference_pool import InferencePool, Server
from pipeline.keys import Keys
from pipeline.messages import CancelReason, JobTemplate, Prompt, Stage
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.scripts import Scripts, Unit
from pipeline.settings import QueueSettings
from workers.llm.connect import connect_backend
from workers.llm.http_backend import HttpBackend
from workers.sandbox.local import owners
from workers.sandbox.service.settings import SANDBOXES

ROUNDS = 5
PROCESSES, SLOTS = 4, 64
MEMBERS = 8
COMMON = "call call call turns turns turns turns"
PARTS = (f"{COMMON} tool", f"{COMMON} turns", f"{COMMON} tools", f"{COMMON} turns")
"""By group, in turn: what its members do."""
NODE = "bench"
LOOK_S = 0.01
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 30.0
TEMPLATE = JobTemplate(task=TASK, expected_bytes=4096)

BOUNDS = {
    "last_call_p99_ms": ("<=", 250.0),
    "settled_ms": ("<=", 1_000.0),
    "model_idle_ms": ("<=", 1_000.0),
    "sandboxes_gone_ms": ("<=", 1_000.0),
    "calls_left": ("<=", 0.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One cancel, in milliseconds from just before it was sent."""

    last_calls_ms: tuple[float, ...]
    """A job each: when its last model or tool call began; 0 when that was before the cancel."""
    settled_ms: float
    """The last terminal record."""
    model_idle_ms: float
    """The end of the last request at the model server."""
    sandboxes_gone_ms: float
    """No sandbox's folder stands any more, and so no process of one runs."""
    said_ms: float
    """The cancel had said all."""
    calls_left: int
    """At the model server, running and waiting."""
    calls: int
    """Model and tool calls that were begun."""


def run(say: Callable[[str], None]) -> Report:
    """The rounds; a minute on a quiet machine."""
    return asyncio.run(_run(say))


async def _run(say: Callable[[str], None]) -> Report:
    kind = bench_server_kind()
    rounds = []
    with bench_server(kind, "everysec") as server, tempfile.TemporaryDirectory(prefix="rsb", dir="/tmp") as folder:
        async with AsyncExitStack() as stack:
            fleet = await stack.enter_async_context(CancelFleet(server.url, Path(folder)))
            for number in range(ROUNDS):
                target = "run" if number % 2 else "groups"
                measured = await fleet.round(number, whole_run=target == "run")
                rounds.append(measured)
                figures = f"last call {max(measured.last_calls_ms):6.1f} ms, settled {measured.settled_ms:6.1f} ms"
                ends = f"model idle {measured.model_idle_ms:6.1f} ms, sandboxes gone {measured.sandboxes_gone_ms:6.1f} ms"
                say(f"round {number + 1} of {ROUNDS}: {fleet.jobs} jobs, by {target:6s}: {figures}, {ends}; load {os.getloadavg()[0]:.1f}")
    return report_of(rounds, {kind.name: version_of(kind)})


def report_of(rounds: list[Round], versions: dict[str, str]) -> Report:
    """The worst round each, and the 99th percentile of all jobs."""
    late = [late_ms for measured in rounds for late_ms in measured.last_calls_ms]
    settled = [measured.settled_ms for measured in rounds]
    metrics = {
        "last_call_p99_ms": statistics.quantiles(late, n=100)[98],
        "last_call_max_ms": max(late),
        "settled_ms": max(settled),
        "settled_median_ms": statistics.median(settled),
        "model_idle_ms": max(measured.model_idle_ms for measured in rounds),
        "sandboxes_gone_ms": max(measured.sandboxes_gone_ms for measured in rounds),
        "said_ms": max(measured.said_ms for measured in rounds),
        "calls_left": float(sum(measured.calls_left for measured in rounds)),
    }
    return Report(name="cancel", metrics=metrics, bounds=BOUNDS, versions=versions)


class CancelFleet:
    """RUN processes and one of INIT on one node, their model server, and a trainer's hand. An async context manager.

    Args:
        folder: with a short path: sockets live below it.
        processes, slots: of RUN; all slots are filled.
    """

    def __init__(self, url: str, folder: Path, *, processes: int = PROCESSES, slots: int = SLOTS) -> None:
        self.groups = processes * slots // MEMBERS
        self.jobs = self.groups * MEMBERS
        self._processes, self._slots = processes, slots
        self._settings = QueueSettings(redis_url=url)
        self._keys = Keys.of_shard(self._settings.namespace, 0)
        self._folder = folder
        self._diary = folder / "diary"
        self._stack = AsyncExitStack()
        self._client: AsyncClient
        self._model: HttpBackend

    async def __aenter__(self) -> CancelFleet:
        async with AsyncExitStack() as stack:
            children = stack.enter_context(ChildProcesses(self._folder / "logs", {"ROLLSTREAM_REDIS_URL": self._settings.redis_url}))
            socket = self._folder / "model"
            children.start("model", "ops.bench.cancel_model", str(socket), str(self._diary))
            places = [str(self._folder / name) for name in ("scratch", "run", "diary")]
            run_dir, scratch = ("--run-dir", places[1]), ("--scratch-dir", places[0])
            children.start("sandboxes", "ops.cli", "sandbox", "serve", "--backend", "process", "--node", NODE, *run_dir, *scratch)
            children.start("init", "ops.bench.cancel_task", Stage.INIT.value, NODE, "0", "16", *places)
            for index in range(self._processes):
                children.start(f"run{index}", "ops.bench.cancel_task", Stage.RUN.value, NODE, str(index), str(self._slots), *places)
            self._client = command_client(self._settings)
            stack.push_async_callback(self._client.aclose)
            async with asyncio.timeout(START_TIMEOUT_S):
                while not socket.exists():
                    children.check()
                    await asyncio.sleep(LOOK_S)
            self._model = await stack.enter_async_context(connect_backend(f"unix:{socket}"))
            self._children = children
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def round(self, number: int, *, whole_run: bool) -> Round:
        """Starts jobs of a run of their own, waits until all of them are at work, cancels them."""
        run = f"bench{number}"
        scripts = Scripts(self._client, self._keys)
        incarnation = await scripts.connect_run(run, nonce=run, ttl_s=3600)
        pool = InferencePool(self._client, self._settings.namespace, lease_s=self._settings.lease_s)
        await pool.attach(run, [Server(self._model.url, shared=True)])
        units = [
            Unit(f"{run}.g{at}.0", MEMBERS, f"g{at}", 0, "1.0", codec.encode(Prompt(id=f"g{at}", data={"parts": PARTS[at % len(PARTS)]})))
            for at in range(self.groups)
        ]
        await scripts.accept(run, incarnation, TEMPLATE, "t", codec.encode(TEMPLATE), units, max_waiting=self.jobs, window=self.jobs)
        await self._all_at_work(run)

        published_s, published_wall_s = time.monotonic(), time.time()
        saying = asyncio.create_task(
            scripts.cancel("run", [run], CancelReason.USER.value)
            if whole_run
            else scripts.cancel("group", [unit.id for unit in units], CancelReason.REDUNDANT.value),
            name="cancel",
        )
        said_s: list[float] = []
        saying.add_done_callback(lambda _: said_s.append(time.monotonic()))
        gone_s = await self._until_gone(run)
        await saying
        records = await ask(self._client, "XRANGE", self._keys.results(run), "-", "+")
        outcomes = {fields[b"out"] for _, fields in records if fields[b"kind"] == b"job"}
        if len(records) != self.jobs or outcomes != {b"cancelled"}:
            raise RuntimeError(f"expected {self.jobs} records of cancelled jobs, got {len(records)}: {outcomes}")
        health = await self._model.control.health()
        lines = [line for line in self._lines() if line[1].startswith(f"{run}.")]
        last = {job: at_s for what, job, at_s in lines if what in ("call", "tool")}
        return Round(
            last_calls_ms=tuple(max(0.0, 1000 * (at_s - published_s)) for at_s in last.values()),
            settled_ms=max(int(entry.split(b"-")[0]) for entry, _ in records) - 1000 * published_wall_s,
            model_idle_ms=1000 * (max(at_s for what, _, at_s in lines if what == "over") - published_s),
            sandboxes_gone_ms=1000 * (gone_s - published_s),
            said_ms=1000 * (said_s[0] - published_s),
            calls_left=health.running + health.waiting,
            calls=self.calls_of(run),
        )

    def calls_of(self, run: str) -> int:
        """Model and tool calls that jobs of a run began so far."""
        return sum(what in ("call", "tool") and job.startswith(f"{run}.") for what, job, _ in self._lines())

    async def _all_at_work(self, run: str) -> None:
        """Every job has begun a call, those with many calls two."""
        wanted = {}
        for at in range(self.groups):
            for member, part in enumerate(PARTS[at % len(PARTS)].split()):
                wanted[f"{run}.g{at}.0.{member}"] = 2 if part in ("turns", "tools") else 1

        def is_at_work() -> bool:
            begun = Counter(job for what, job, _ in self._lines() if what in ("call", "tool"))
            return all(begun[job] >= count for job, count in wanted.items())

        async with asyncio.timeout(START_TIMEOUT_S):
            while not is_at_work():
                self._children.check()
                await asyncio.sleep(0.2)

    async def _until_gone(self, run: str) -> float:
        """Until all jobs of the run have ended, and no sandbox stands; when that was, by the monotonic clock."""
        gone_s = 0.0
        async with asyncio.timeout(END_TIMEOUT_S):
            while True:
                stand = bool(owners(self._folder / "scratch" / SANDBOXES))
                gone_s = 0.0 if stand else gone_s or time.monotonic()
                if gone_s and int(await ask(self._client, "XLEN", self._keys.results(run))) >= self.jobs:
                    return gone_s
                await asyncio.sleep(LOOK_S)

    def _lines(self) -> Iterable[tuple[str, str, float]]:
        """The diary: what, job, when."""
        text = self._diary.read_text(encoding="ascii") if self._diary.exists() else ""
        for line in text.splitlines():
            what, job, at_s = line.split()
            yield what, job, float(at_s)


__all__ = ["BOUNDS", "CancelFleet", "Round", "report_of", "run"]
