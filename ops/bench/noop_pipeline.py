"""The no-op pipeline as a benchmark drives it: worker processes, a feeder, a reader that acknowledges, and the clock."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ops.bench.processes import cpu_s
from ops.child_processes import Child, ChildProcesses
from pipeline import codec
from pipeline.keys import Keys
from pipeline.messages import JobTemplate, Prompt
from pipeline.redis_client import AsyncClient, ask, command_client, reader_client
from pipeline.scripts import Scripts, Unit
from pipeline.scripts.calls import MAX_BATCH, new_nonce
from pipeline.settings import QueueSettings

RUN = "bench"
MEMBERS = 8
QUESTION = "x" * 300
UNITS_A_CALL = 4
"""Groups a call of the feeder: 32 jobs, as all batches."""
FEEDERS = 4
"""Calls of the feeder on their way at a time: a busy server answers one after some others, and the workers must not wait for jobs."""
READ_COUNT = 500
WARM_JOBS = 256
START_TIMEOUT_S = 20.0
SLOTS = 512
"""Of each stage in a worker process: as many as rollouts that mostly wait for a model need."""
TEMPLATE = JobTemplate(task="noop", expected_bytes=4096)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one measurement gave."""

    jobs_per_s: float
    redis_cpu_ms_a_job: float
    cpu_ms_a_job: float
    """Of the server and the workers; not of who feeds them."""


class NoopPipeline:
    """A running no-op pipeline on one server, with its workers up and one run connected."""

    def __init__(
        self, settings: QueueSettings, client: AsyncClient, reader: AsyncClient, incarnation: int, workers: Sequence[Child] = ()
    ) -> None:
        self.settings = settings
        self.client = client
        self._workers = workers
        self.keys = Keys.of_shard(settings.namespace, 0)
        self.scripts = Scripts(client, self.keys)
        self._reader = reader
        self._incarnation = incarnation
        self._groups = 0
        self._position = "0-0"
        self._ended: Counter[str] = Counter()

    async def accept(self, jobs: int) -> None:
        """Puts jobs into the queue, in whole groups: a remainder is left out."""
        template, prompt = codec.encode(TEMPLATE), codec.encode(Prompt(id="p", data={"question": QUESTION}))
        first = self._groups
        self._groups += jobs // MEMBERS
        units = [Unit(f"{RUN}.e0-{i}.0", MEMBERS, f"e0-{i}", 0, "1.0", prompt) for i in range(first, self._groups)]
        batches = iter([units[at : at + UNITS_A_CALL] for at in range(0, len(units), UNITS_A_CALL)])

        async def feed() -> None:
            for batch in batches:
                await self.scripts.accept(
                    RUN, self._incarnation, TEMPLATE, "t", template, batch, max_waiting=10**7, window=self.settings.admit_window
                )

        async with asyncio.TaskGroup() as feeders:
            for number in range(FEEDERS):
                feeders.create_task(feed(), name=f"feed-{number}")

    async def collect(self, jobs: int, *, replace: bool = False) -> None:
        """Reads results until so many more jobs have ended, and acknowledges the groups that closed, many at a time as a trainer does.

        Args:
            replace: put a new job into the queue for each that ended, so that as many are open all the time.
        """
        seen = owed = 0
        closed: list[str] = []
        while seen < jobs:
            reply = await ask(self._reader, "XREAD", "COUNT", READ_COUNT, "BLOCK", 1000, "STREAMS", self.keys.results(RUN), self._position)
            entries = reply[0][1] if reply else []
            closed += [group for entry, fields in entries if (group := self._count(entry, fields))]
            seen += len(entries)
            if len(closed) >= MAX_BATCH or seen >= jobs:
                await self.scripts.ack(RUN, self._incarnation, [("", "group", group) for group in closed])
                closed.clear()
            owed += len(entries) if replace else 0
            await self.accept(owed)
            owed %= MEMBERS

    def _count(self, entry: bytes, fields: list[bytes]) -> str:
        """Takes one result; the group that it completes, or nothing."""
        self._position = entry.decode()
        group = fields[fields.index(b"grp") + 1].decode()
        self._ended[group] += 1
        if self._ended[group] < MEMBERS:
            return ""
        del self._ended[group]
        return group

    async def measure(self, jobs: int) -> Measured:
        """Feeds from an empty queue, reads, acknowledges; the clock stops when the last is acknowledged."""
        async with Clock(self.client, self._workers, jobs) as clock:
            feeding = asyncio.create_task(self.accept(jobs), name="feed")
            await self.collect(jobs)
            await feeding
        return clock.measured

    async def measure_steady(self, jobs: int) -> Measured:
        """As long as so many jobs end, with a new one for each, so that as many wait at the end as at the start."""
        async with Clock(self.client, self._workers, jobs) as clock:
            await self.collect(jobs, replace=True)
        return clock.measured


class Clock:
    """Wall time and CPU of a block that does a number of jobs."""

    measured: Measured

    def __init__(self, client: AsyncClient, workers: Sequence[Child], jobs: int) -> None:
        self._client = client
        self._workers = workers
        self._jobs = jobs

    async def __aenter__(self) -> Clock:
        self._redis_s = await redis_cpu_s(self._client)
        self._workers_s = cpu_s(self._workers)
        self._started_s = time.perf_counter()
        return self

    async def __aexit__(self, *_: object) -> None:
        took_s = time.perf_counter() - self._started_s
        workers_s = cpu_s(self._workers) - self._workers_s
        redis_s = await redis_cpu_s(self._client) - self._redis_s
        self.measured = Measured(self._jobs / took_s, redis_s / self._jobs * 1000, (redis_s + workers_s) / self._jobs * 1000)


async def redis_cpu_s(client: AsyncClient) -> float:
    """CPU that the server has used since it started, in all its threads."""
    cpu = await ask(client, "INFO", "cpu")
    return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


@asynccontextmanager
async def open_run(settings: QueueSettings, workers: Sequence[Child] = ()) -> AsyncIterator[NoopPipeline]:
    """A run connected.

    Args:
        workers: the processes that serve it, of which CPU is told.
    """
    client, reader = command_client(settings), reader_client(settings, block_s=1.0)
    try:
        scripts = Scripts(client, Keys.of_shard(settings.namespace, 0))
        yield NoopPipeline(settings, client, reader, await scripts.connect_run(RUN, nonce=new_nonce(), ttl_s=3600), workers)
    finally:
        await reader.aclose()
        await client.aclose()


@asynccontextmanager
async def noop_pipeline(url: str, *, processes: int = 1, slots: int = SLOTS) -> AsyncIterator[NoopPipeline]:
    """A run connected, its workers up and warm.

    Args:
        processes: worker processes, each with all three stages.
        slots: of each stage in a process.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, ChildProcesses(Path(folder), {"ROLLSTREAM_REDIS_URL": url}) as children:
        workers = [children.start(f"noop{number}", "ops.bench.noop_stages", f"node{number}", str(slots)) for number in range(processes)]
        async with open_run(QueueSettings(redis_url=url), workers) as pipeline:
            await _workers_up(children, pipeline.client, [pipeline.keys.worker(f"eval-node{number}-0") for number in range(processes)])
            await pipeline.measure(WARM_JOBS)  # scripts loaded, code compiled
            yield pipeline


async def _workers_up(children: ChildProcesses, client: AsyncClient, names: list[str]) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while int(await ask(client, "EXISTS", *names)) < len(names):
            children.check()
            await asyncio.sleep(0.05)


async def measure_ours(url: str, *, processes: int, jobs: int) -> Measured:
    """One measurement from start to end."""
    async with noop_pipeline(url, processes=processes) as pipeline:
        return await pipeline.measure(jobs)
