"""No-op jobs through all three stages, in the same run as the same three hops on taskiq and RQ.

Ours does all that a real job asks of the queue (`noop_stages`): fences, leases, bodies in keys, a journalled turn, results, fan-in into
groups, the trainer's acknowledgement. The rivals send three tasks, each the next one, without results. All are fed while they work, on a
server of the same kind that syncs its log each second, and take turns, so that a busy moment of the machine hits all alike; figures are
medians. On a machine that others use too, rates say who got more of it: there the ratios of CPU a job (server and workers) are what to
look at.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from ops.bench.depth import measure_depth
from ops.bench.noop_pipeline import Measured, measure_ours
from ops.bench.report import Report
from ops.bench.rival_pipeline import measure_rq, measure_taskiq
from ops.bench.rivals import HOW_TO_GET, Rivals
from ops.bench.servers import bench_server, bench_server_kind, version_of
from pipeline.testing.servers import Persistence, ServerKind

ROUNDS = 3
JOBS = 6_000
TASKIQ_JOBS = 2_000
RQ_JOBS, RQ_SIMPLE_JOBS = 20, 200
"""So many take each of them one to two seconds."""

BOUNDS = {
    "jobs_per_s": (">=", 2_000.0),
    "redis_cpu_ms_a_job": ("<=", 0.25),
    "always_jobs_per_s": (">=", 1_200.0),  # half of what the first measurement gave: a sync of the disk decides it, and disks differ
    "taskiq_ratio": (">=", 3.0),
    "rq_ratio": (">=", 40.0),
    "depth_cost_ratio": ("<=", 1.15),
    "depth_wall_ratio": ("<=", 1.15),
}


@dataclass(slots=True)
class Contender:
    """Somebody who takes a turn each round."""

    measure: Callable[[str], Awaitable[Measured]]
    persistence: Persistence = "everysec"
    turns: list[Measured] = field(default_factory=list)

    @property
    def jobs_per_s(self) -> float:
        """Median of the turns."""
        return statistics.median(turn.jobs_per_s for turn in self.turns)

    @property
    def redis_cpu_ms_a_job(self) -> float:
        """Median of the turns."""
        return statistics.median(turn.redis_cpu_ms_a_job for turn in self.turns)

    @property
    def cpu_ms_a_job(self) -> float:
        """Median of the turns."""
        return statistics.median(turn.cpu_ms_a_job for turn in self.turns)


def run(say: Callable[[str], None]) -> Report:
    """The whole comparison, and what a deep queue costs; two minutes on a quiet machine."""
    return asyncio.run(_run(say))


async def _run(say: Callable[[str], None]) -> Report:
    kind = bench_server_kind()
    contenders, left_out = _contenders(Rivals())
    await _take_turns(kind, contenders, say)
    ours = max(contenders["ours_1"], contenders["ours_2"], key=lambda contender: contender.jobs_per_s)
    metrics = {
        "jobs_per_s": ours.jobs_per_s,
        "worker_processes": 1.0 if ours is contenders["ours_1"] else 2.0,
        "redis_cpu_ms_a_job": ours.redis_cpu_ms_a_job,
        "cpu_ms_a_job": ours.cpu_ms_a_job,
        "always_jobs_per_s": contenders["ours_always"].jobs_per_s,
        "always_redis_cpu_ms_a_job": contenders["ours_always"].redis_cpu_ms_a_job,
    }
    for name in ("taskiq", "rq", "rq_simple"):
        if name in contenders:
            rival = contenders[name]
            metrics[f"{name}_ratio"] = ours.jobs_per_s / rival.jobs_per_s
            metrics[f"{name}_cpu_ratio"] = rival.cpu_ms_a_job / ours.cpu_ms_a_job
            metrics[f"{name}_jobs_per_s"] = rival.jobs_per_s
            metrics[f"{name}_redis_cpu_ms_a_job"] = rival.redis_cpu_ms_a_job
    metrics |= await measure_depth(kind, say)
    return Report(
        name="pipeline",
        metrics=metrics,
        bounds={metric: bound for metric, bound in BOUNDS.items() if metric in metrics},
        left_out=tuple(left_out),
        versions={kind.name: version_of(kind)},
    )


def _contenders(rivals: Rivals) -> tuple[dict[str, Contender], list[str]]:
    """Who takes part, and who is not installed."""
    contenders = {
        "ours_1": Contender(partial(measure_ours, processes=1, jobs=JOBS)),
        "ours_2": Contender(partial(measure_ours, processes=2, jobs=JOBS)),
        "ours_always": Contender(partial(measure_ours, processes=2, jobs=JOBS), "always"),
    }
    left_out = []
    if python := rivals.python_with_taskiq():
        contenders["taskiq"] = Contender(partial(measure_taskiq, python=python, jobs=TASKIQ_JOBS))
    else:
        left_out.append(f"taskiq-redis, not installed: {HOW_TO_GET}")
    if python := rivals.python_with_rq():
        contenders["rq"] = Contender(partial(measure_rq, python=python, jobs=RQ_JOBS, worker="fork"))
        contenders["rq_simple"] = Contender(partial(measure_rq, python=python, jobs=RQ_SIMPLE_JOBS, worker="simple"))
    else:
        left_out.append(f"RQ, not installed: {HOW_TO_GET}")
    return contenders, left_out


async def _take_turns(kind: ServerKind, contenders: dict[str, Contender], say: Callable[[str], None]) -> None:
    for turn in range(ROUNDS):
        for name, contender in contenders.items():
            with bench_server(kind, contender.persistence) as server:
                measured = await contender.measure(server.url)
            contender.turns.append(measured)
            cpu = f"CPU {measured.cpu_ms_a_job:.3f} ms a job, of it Redis {measured.redis_cpu_ms_a_job:.3f}"
            figures = f"{measured.jobs_per_s:8,.0f} jobs/s, {cpu}"
            say(f"round {turn + 1} of {ROUNDS}: {name:11s} {figures}")
