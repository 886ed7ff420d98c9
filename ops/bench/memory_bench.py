"""What jobs leave in Redis when they are done and acknowledged, until their tombstones expire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ops.bench.noop_pipeline import NoopPipeline, noop_pipeline
from ops.bench.report import Report
from ops.bench.servers import bench_server, version_of
from pipeline.redis_client import ask
from pipeline.testing.servers import ServerKind, found_servers

JOBS = 20_000
CHUNK = 2_000
"""Jobs between two lines of progress."""
MOST_BYTES_A_JOB = 50.0
SETTLING_ROUNDS, SETTLING_PAUSE_S = 30, 0.1
"""Workers say a last word and stages trim their streams after the last job; three seconds see that done."""


def run(say: Callable[[str], None]) -> Report:
    """Bytes a job, on each server found."""
    return asyncio.run(_run(say))


async def _run(say: Callable[[str], None]) -> Report:
    kinds = found_servers()
    left = {f"{kind.name}_bytes_a_job": await left_over(kind, JOBS, say) for kind in kinds}
    return Report(
        name="memory",
        metrics=left,
        bounds=dict.fromkeys(left, ("<=", MOST_BYTES_A_JOB)),
        versions={kind.name: version_of(kind) for kind in kinds},
    )


async def left_over(kind: ServerKind, jobs: int, say: Callable[[str], None]) -> float:
    """Bytes that each of so many jobs leaves on a server of a kind."""
    with bench_server(kind, "none") as server:
        async with noop_pipeline(server.url) as pipeline:
            before = await _stored_bytes(pipeline)
            for done in range(0, jobs, CHUNK):
                await pipeline.measure(min(CHUNK, jobs - done))
                say(f"{kind.name}: {min(done + CHUNK, jobs):,} of {jobs:,} jobs")
            return (await _stored_bytes(pipeline) - before) / jobs


async def _stored_bytes(pipeline: NoopPipeline) -> int:
    """Memory of all keys with all that they hold, at rest: the least of some seconds.

    Not what the server has in use. Buffers of its clients alone go up and down by 150 KB between two moments of rest, which with some
    thousand jobs is as much as what these leave; and compiled scripts come on top.
    """
    least = 0
    for _ in range(SETTLING_ROUNDS):
        keys = [key async for key in pipeline.client.scan_iter(count=1000)]
        sizes = await asyncio.gather(*(ask(pipeline.client, "MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys))
        stored = sum(int(size or 0) for size in sizes)  # none where one ran out meanwhile
        least = min(least or stored, stored)
        await asyncio.sleep(SETTLING_PAUSE_S)
    return least
