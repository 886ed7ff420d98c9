"""Whether one Redis costs the same for each job when the fleet grows: 64 to 1,024 RUN slots on 16 simulated nodes (`scaling_host`).

The number of nodes, and so of processes that beat, renew and look, is the same in every size; what they cost without any job is measured
before the jobs come and taken off, so that what is compared is what a job costs. Sizes are measured going up, and some going down again, so
that a machine that grows busier does not look like a queue that does. Commands and bytes are what they are beside other work, too; the
CPU of Redis grows with what others do to the caches, and how long a claim takes is theirs to say. Two more arms, of one turn and of long
deltas, tell what a turn and a kibibyte cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ops.bench.noop_pipeline import MEMBERS, RUN, NoopPipeline, open_run
from ops.bench.report import Report
from ops.bench.scaling_host import Turns
from ops.bench.servers import bench_server_kind, version_of
from ops.child_processes import ChildProcesses
from pipeline.embedded.server_config import FOR_QUEUES
from pipeline.inference_pool import InferencePool, Server
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.testing.servers import PrivateServer, ServerKind

NODES, PROCESSES = 16, 2
SIZES = (64, 128, 256, 512, 1024)
ORDER = (*SIZES, 1024, 256, 64)
TURNS = Turns(turns=4, turn_s=4.0, delta_bytes=1024)
"""A job of 16 s: 64 a second at most, which the clients of two cores bear beside other work."""
COST_SLOTS = 256
ONE_TURN = Turns(turns=1, turn_s=16.0, delta_bytes=1024)
LONG = Turns(turns=4, turn_s=4.0, delta_bytes=16 * 1024)
BUSY_SLOTS = 1024
BUSY = Turns(turns=4, turn_s=0.5, delta_bytes=1024)
"""More jobs a second than the clients of two cores bear: what a job costs a Redis that has much to do."""
MODEL_SERVERS = 16
WAITING = 256
"""Jobs beyond the slots, so that a slot that comes free finds one."""
REST_S, RAMP_S, WINDOW_S = 4.0, 24.0, 24.0
START_TIMEOUT_S = 120.0
FULL_SHARE = 0.8
"""Of a core: beyond it scripts wait for each other, and a busy moment of the machine is a stall of the queue."""
NO_REWRITE = (("auto-aof-rewrite-percentage", "0"),)
"""So that the growth of the append-only file can be told."""

BOUNDS = {
    "cpu_growth_ratio": ("<=", 1.15),
    "held_ratio": (">=", 0.95),
    "claim_p99_ms": ("<=", 250.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What the server has counted since it started."""

    cpu_s: float
    commands: int
    scripts: int
    in_bytes: int
    out_bytes: int
    aof_bytes: int
    used_bytes: int
    ended: int
    """Jobs of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One window of one size. What is said a job is without what the fleet costs at rest, memory and `held_ratio` aside."""

    jobs_per_s: float
    cpu_share: float
    """Of a core, all of it."""
    rest_share: float
    """Of a core, by the same fleet without jobs."""
    cpu_ms: float
    commands: float
    scripts: float
    in_bytes: float
    out_bytes: float
    aof_bytes: float
    open_bytes: float
    """Memory of an open job."""
    held_ratio: float
    """RUN slots that had a job."""
    claims_ms: Sequence[float]
    gaps_ms: Sequence[float]


def run(say: Callable[[str], None]) -> Report:
    """All sizes, three of them twice, the arms of costs and the busy one; eleven minutes."""
    return asyncio.run(_run(say))


async def _run(say: Callable[[str], None]) -> Report:
    kind = bench_server_kind()
    sizes: dict[int, list[Measured]] = {slots: [] for slots in SIZES}
    for slots in ORDER:
        sizes[slots].append(await _measure_and_say(kind, slots, TURNS, say))
    one_turn = await _measure_and_say(kind, COST_SLOTS, ONE_TURN, say)
    long = await _measure_and_say(kind, COST_SLOTS, LONG, say)
    busy = await _measure_and_say(kind, BUSY_SLOTS, BUSY, say)
    return report_of(sizes, one_turn, long, busy, {kind.name: version_of(kind)})


async def _measure_and_say(kind: ServerKind, slots: int, turns: Turns, say: Callable[[str], None]) -> Measured:
    measured = await measure(kind, slots, turns)
    what = f"{slots:5,} slots, {turns.turns} turns of {turns.delta_bytes // 1024:2} KiB: {measured.jobs_per_s:6.1f} jobs/s"
    redis = f"Redis {measured.cpu_ms:.3f} ms and {measured.commands:.0f} commands a job, {measured.rest_share:.1%} of a core at rest"
    say(f"{what}, {redis}, claim p99 {_p99(measured.claims_ms):.1f} ms; load {os.getloadavg()[0]:.1f}")
    return measured


def report_of(sizes: dict[int, list[Measured]], one_turn: Measured, long: Measured, busy: Measured, versions: dict[str, str]) -> Report:
    """Figures of all passes together."""
    smallest, largest = min(sizes), max(sizes)
    base, most = sizes.get(COST_SLOTS) or sizes[largest], sizes[largest]
    cpu_ms = {slots: _mean(found, "cpu_ms") for slots, found in sizes.items()}
    every = [each for found in sizes.values() for each in found]
    cpu = _parts(base, one_turn, long, "cpu_ms")
    metrics = {
        "cpu_growth_ratio": cpu_ms[largest] / cpu_ms[smallest],
        **{f"cpu_ms_a_job_{slots}_slots": figure for slots, figure in cpu_ms.items()},
        **{f"jobs_per_s_{slots}_slots": _mean(found, "jobs_per_s") for slots, found in sizes.items()},
        "rest_share_ratio": statistics.median(each.rest_share for each in every),
        "held_ratio": min(each.held_ratio for each in every),
        "commands_a_job": _mean(most, "commands"),
        "scripts_a_job": _mean(most, "scripts"),
        "claim_p50_ms": statistics.median(ms for each in most for ms in each.claims_ms),
        "claim_p99_ms": _p99([ms for each in most for ms in each.claims_ms]),
        "slot_gap_p99_ms": _p99([ms for each in most for ms in each.gaps_ms]),
        "job_cpu_us": cpu.job * 1000,
        "turn_cpu_us": cpu.turn * 1000,
        "kib_cpu_us": cpu.byte * 1000 * 1024,
        **{
            f"{name}_a_{part}": figure
            for name in ("aof_bytes", "in_bytes", "out_bytes")
            for part, figure in asdict(_parts(base, one_turn, long, name)).items()
        },
        "memory_bytes_an_open_job": _mean(most, "open_bytes"),
        "busy_jobs_per_s": busy.jobs_per_s,
        "busy_cpu_ms_a_job": busy.cpu_ms,
        "busy_commands_a_job": busy.commands,
        "full_jobs_per_s": (FULL_SHARE - busy.rest_share) / busy.cpu_ms * 1000,
    }
    return Report(name="scaling", metrics=metrics, bounds=BOUNDS, versions=versions)


@dataclass(frozen=True, slots=True)
class Parts:
    """A cost of a job: what each has, what a turn adds, and what a byte adds that is written, in the journal or as a body."""

    job: float
    turn: float
    byte: float


def _parts(base: Sequence[Measured], one_turn: Measured, long: Measured, name: str) -> Parts:
    """Solved from three measurements that differ in turns and in bytes."""
    usual, one, more = _mean(base, name), _mean([one_turn], name), _mean([long], name)
    usual_bytes, one_bytes, more_bytes = (2 * each.turns * each.delta_bytes for each in (TURNS, ONE_TURN, LONG))
    byte = (more - usual) / (more_bytes - usual_bytes)
    turn = (usual - one - byte * (usual_bytes - one_bytes)) / (TURNS.turns - ONE_TURN.turns)
    return Parts(one - turn * ONE_TURN.turns - byte * one_bytes, turn, byte)


def _mean(found: Sequence[Measured], name: str) -> float:
    return statistics.mean(float(getattr(each, name)) for each in found)


def _p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else max(values, default=0.0)


async def measure(
    kind: ServerKind,
    slots: int,
    turns: Turns,
    *,
    nodes: int = NODES,
    processes: int = PROCESSES,
    rest_s: float = REST_S,
    ramp_s: float = RAMP_S,
    window_s: float = WINDOW_S,
) -> Measured:
    """One size on a server of its own."""
    with PrivateServer(kind, persistence="everysec", extra=(*FOR_QUEUES, *NO_REWRITE)) as server:
        settings = QueueSettings(redis_url=server.url)
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            async with fleet(settings, Path(folder), slots // nodes, turns, nodes, processes) as (pipeline, notes, children):
                before_rest = await _read(pipeline)
                await asyncio.sleep(rest_s)
                rest = await _read(pipeline)
                rest_cpu, rest_share = rest.cpu_s - before_rest.cpu_s, (rest.cpu_s - before_rest.cpu_s) / rest_s
                feeding = asyncio.create_task(_keep_full(pipeline, slots + WAITING), name="feed")
                await _sleep(ramp_s, feeding, children)
                before, noted, held = await _read(pipeline), notes.stat().st_size, await _held(pipeline)
                await _sleep(window_s, feeding, children)
                after, held_after = await _read(pipeline), await _held(pipeline)
                lines = [line.split() for line in notes.read_bytes()[noted:].decode("ascii").splitlines()]
                feeding.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await feeding
    jobs = after.ended - before.ended
    if jobs == 0:
        raise RuntimeError(f"no job of {slots} slots ended within {window_s:g} s: the machine is too busy to measure anything")
    of_rest = window_s / rest_s

    def a_job(name: str) -> float:
        grown, resting = (getattr(late, name) - getattr(early, name) for early, late in ((before, after), (before_rest, rest)))
        return float((grown - of_rest * resting) / jobs)

    return Measured(
        jobs_per_s=jobs / window_s,
        cpu_share=(after.cpu_s - before.cpu_s) / window_s,
        rest_share=rest_share,
        cpu_ms=(after.cpu_s - before.cpu_s - of_rest * rest_cpu) / jobs * 1000,
        commands=a_job("commands"),
        scripts=a_job("scripts"),
        in_bytes=a_job("in_bytes"),
        out_bytes=a_job("out_bytes"),
        aof_bytes=a_job("aof_bytes"),
        open_bytes=(before.used_bytes - rest.used_bytes) / (slots + WAITING),
        held_ratio=(held + held_after) / 2 / (slots // nodes * nodes),
        claims_ms=tuple(float(ms) for what, ms in lines if what == "claim"),
        gaps_ms=tuple(float(ms) for what, ms in lines if what == "gap"),
    )


@asynccontextmanager
async def fleet(
    settings: QueueSettings, folder: Path, slots: int, turns: Turns, nodes: int, processes: int
) -> AsyncIterator[tuple[NoopPipeline, Path, ChildProcesses]]:
    """All nodes up, a run connected, its model servers known and well."""
    notes = folder / "notes"
    notes.touch()
    environment = {"ROLLSTREAM_REDIS_URL": settings.redis_url}
    async with open_run(settings) as pipeline:
        with ChildProcesses(folder, environment) as children:
            each = nodes // processes
            words = (str(each), str(slots), str(turns.turns), str(turns.turn_s), str(turns.delta_bytes), str(notes))
            for number in range(processes):
                children.start(f"nodes{number}", "ops.bench.scaling_host", str(number * each), *words)
            pool = InferencePool(pipeline.client, settings.namespace, lease_s=settings.lease_s)
            await pool.attach(RUN, [Server(f"http://model{number}:8000", shared=True) for number in range(MODEL_SERVERS)])
            names = [pipeline.keys.worker(f"{stage.value}-node{number}-0") for stage in Stage for number in range(each * processes)]
            async with asyncio.timeout(START_TIMEOUT_S):
                while int(await ask(pipeline.client, "EXISTS", *names)) < len(names):
                    children.check()
                    await asyncio.sleep(0.1)
            yield pipeline, notes, children


async def _keep_full(pipeline: NoopPipeline, jobs: int) -> None:
    """So many jobs are open all the time; a result is acknowledged as soon as its group has closed."""
    await pipeline.accept(jobs // MEMBERS * MEMBERS)
    await pipeline.collect(10**9, replace=True)


async def _sleep(seconds: float, feeding: asyncio.Task[None], children: ChildProcesses) -> None:
    """Waits while all goes well."""
    await asyncio.wait([feeding], timeout=seconds)
    children.check()
    if feeding.done():
        feeding.result()


async def _read(pipeline: NoopPipeline) -> Counters:
    cpu, stats, memory, persistence, commands = [
        await ask(pipeline.client, "INFO", part) for part in ("cpu", "stats", "memory", "persistence", "commandstats")
    ]
    return Counters(
        cpu_s=float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]),
        commands=sum(int(found["calls"]) for found in commands.values()),
        scripts=int(commands.get("cmdstat_evalsha", {"calls": 0})["calls"]),
        in_bytes=int(stats["total_net_input_bytes"]),
        out_bytes=int(stats["total_net_output_bytes"]),
        aof_bytes=int(persistence["aof_current_size"]),
        used_bytes=int(memory["used_memory"]),
        ended=int(await ask(pipeline.client, "HGET", pipeline.keys.run(RUN), "out.ok") or 0),
    )


async def _held(pipeline: NoopPipeline) -> int:
    """Jobs that RUN workers hold."""
    client: AsyncClient = pipeline.client
    return int((await ask(client, "XPENDING", pipeline.keys.stage_stream(Stage.RUN), Stage.RUN.value))["pending"])


__all__ = ["BOUNDS", "Measured", "fleet", "measure", "report_of", "run"]
