"""One measurement of a rival: its workers, its feeder, and the same three hops."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Literal

from ops.bench.noop_pipeline import Measured, redis_cpu_s
from ops.bench.processes import cpu_s
from ops.child_processes import ChildEnded, ChildProcesses
from pipeline.redis_client import AsyncClient, ask, command_client
from pipeline.settings import QueueSettings

PROGRAMS = Path(__file__).parent / "rival_programs"
HOPS = 3
PROCESSES = 2
"""Of each rival: one a core of the smallest machine we measure on, and more than that made none of them faster."""
WARM_JOBS = 32
POLL_S = 0.02
"""Between two looks at how far it is: the looks themselves must cost the rival nothing."""
START_TIMEOUT_S = 60.0

Command = Sequence[str | Path]
RqWorker = Literal["fork", "simple"]


async def measure_taskiq(url: str, python: Path, jobs: int) -> Measured:
    """Taskiq-redis streams. All that was sent is counted by its group, which tells it without costing the workers anything."""
    client = command_client(QueueSettings(redis_url=url))

    async def ended() -> int:
        facts = (await ask(client, "XINFO", "GROUPS", "taskiq"))[0]
        group = dict(zip(facts[::2], facts[1::2], strict=True))
        return int(group[b"entries-read"] or 0) - int(group[b"pending"])

    async def workers_up() -> bool:
        # each waits in a blocking read
        return int((await ask(client, "INFO", "clients"))["blocked_clients"]) == PROCESSES

    workers: Command = (python, PROGRAMS / "taskiq_hops.py", "work", str(PROCESSES))
    feeder: Command = (python, PROGRAMS / "taskiq_hops.py", "feed")
    try:
        return await _measure(client, url, [workers], feeder, jobs, workers_up, ended)
    finally:
        await client.aclose()


async def measure_rq(url: str, python: Path, jobs: int, worker: RqWorker) -> Measured:
    """RQ. Its workers count what they did."""
    client = command_client(QueueSettings(redis_url=url))

    async def ended() -> int:
        workers = await ask(client, "SMEMBERS", "rq:workers")
        return sum([int(await ask(client, "HGET", name, "successful_job_count") or 0) for name in workers])

    async def workers_up() -> bool:
        return int(await ask(client, "SCARD", "rq:workers")) == PROCESSES

    command: Command = (python, PROGRAMS / "rq_hops.py", worker)
    feeder: Command = (python, PROGRAMS / "rq_hops.py", "feed")
    try:
        return await _measure(client, url, [command] * PROCESSES, feeder, jobs, workers_up, ended)
    finally:
        await client.aclose()


async def _measure(
    client: AsyncClient,
    url: str,
    workers: Sequence[Command],
    feeder: Command,
    jobs: int,
    workers_up: Callable[[], Awaitable[bool]],
    ended: Callable[[], Awaitable[int]],
) -> Measured:
    """Workers up and warm; then the feeder starts, and the clock with its first job. It stops with the last hop."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, ChildProcesses(Path(folder), {"ROLLSTREAM_REDIS_URL": url}) as children:
        started = [children.start_command(f"worker{number}", command, cwd=PROGRAMS) for number, command in enumerate(workers)]
        await _until(workers_up, children, START_TIMEOUT_S)
        _feed(children, feeder, WARM_JOBS)
        await _until(_reached(ended, HOPS * WARM_JOBS), children, START_TIMEOUT_S)
        redis_s, workers_s = await redis_cpu_s(client), cpu_s(started)
        first = HOPS * WARM_JOBS + 1
        _feed(children, feeder, jobs)
        await _until(_reached(ended, first), children, START_TIMEOUT_S)
        started_s, done_before = time.perf_counter(), await ended()
        await _until(_reached(ended, HOPS * (WARM_JOBS + jobs)), children, 10 * START_TIMEOUT_S)
        took_s = time.perf_counter() - started_s
        hops = HOPS * (WARM_JOBS + jobs) - done_before
        redis_s, workers_s = await redis_cpu_s(client) - redis_s, cpu_s(started) - workers_s
        return Measured(hops / HOPS / took_s, redis_s / jobs * 1000, (redis_s + workers_s) / jobs * 1000)


def _feed(children: ChildProcesses, feeder: Command, jobs: int) -> None:
    child = children.start_command(f"feed-{jobs}", [*feeder, str(jobs)], cwd=PROGRAMS)
    child.asked_to_stop = True  # it ends by itself


def _reached(count: Callable[[], Awaitable[int]], least: int) -> Callable[[], Awaitable[bool]]:
    async def reached() -> bool:
        return await count() >= least

    return reached


async def _until(is_so: Callable[[], Awaitable[bool]], children: ChildProcesses, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        while not await is_so():
            children.check()
            failed = [child for child in children.children if child.exit_code]
            if failed:
                raise ChildEnded(failed[0])
            await asyncio.sleep(POLL_S)
