"""What a job costs with ten jobs waiting before it, and with a hundred thousand.

As many jobs wait at the end of a measurement as at its start: a new one comes in for each that ends. The shallow queue is measured before
and after the deep one, on servers of their own, so that a machine that grows busier does not look like a queue that grows slower.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from ops.bench.noop_pipeline import RUN, SLOTS, Measured, noop_pipeline
from ops.bench.servers import bench_server
from pipeline.messages import Stage
from pipeline.redis_client import ask
from pipeline.testing.servers import ServerKind

FEW, MANY = 10, 100_000
JOBS = 3_000
MEASURES = 3


async def measure_depth(kind: ServerKind, say: Callable[[str], None]) -> dict[str, float]:
    """Ratios of deep to shallow, of the server's CPU and of wall time, and the figures behind them."""
    shallow, few = await _at_depth(kind, FEW, say)
    deep, many = await _at_depth(kind, MANY, say)
    again, _ = await _at_depth(kind, FEW, say)
    shallow += again
    cpu_few, cpu_many = (statistics.median(m.redis_cpu_ms_a_job for m in measures) for measures in (shallow, deep))
    wall_few, wall_many = (statistics.median(1 / m.jobs_per_s for m in measures) for measures in (shallow, deep))
    return {
        "depth_cost_ratio": cpu_many / cpu_few,
        "depth_wall_ratio": wall_many / wall_few,
        "deep_waiting": many,
        "deep_redis_cpu_ms_a_job": cpu_many,
        "shallow_waiting": few,
        "shallow_redis_cpu_ms_a_job": cpu_few,
    }


async def _at_depth(kind: ServerKind, waiting: int, say: Callable[[str], None]) -> tuple[list[Measured], float]:
    with bench_server(kind, "everysec") as server:
        async with noop_pipeline(server.url) as pipeline:
            # enough for every slot of the three stages, so that both depths meet equally busy workers; the rest waits
            await pipeline.accept(waiting + len(Stage) * SLOTS)
            await pipeline.collect(JOBS // 4, replace=True)
            measures, waited = [], []
            for _ in range(MEASURES):
                measures.append(await pipeline.measure_steady(JOBS))
                waited.append(int(await ask(pipeline.client, "ZCARD", pipeline.keys.queue(RUN))))
            cpu = statistics.median(measured.redis_cpu_ms_a_job for measured in measures)
            say(f"about {waiting:,} waiting: {cpu:.3f} ms of Redis a job, {statistics.median(waited):,.0f} in the queue of the run")
            return measures, statistics.median(waited)
