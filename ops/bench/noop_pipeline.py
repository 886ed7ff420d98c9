"""One measurement of the no-op pipeline: worker processes, a feeder, a reader, and the clock."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ops.child_processes import ChildProcesses
from pipeline import codec
from pipeline.keys import Keys
from pipeline.messages import JobTemplate, Prompt
from pipeline.redis_client import AsyncClient, ask, command_client, reader_client
from pipeline.scripts import Scripts, Unit
from pipeline.scripts.calls import new_nonce
from pipeline.settings import QueueSettings

RUN = "bench"
MEMBERS = 8
QUESTION = "x" * 300
UNITS_A_CALL = 4
READ_COUNT = 500
START_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What one measurement gave."""

    jobs_per_s: float
    redis_cpu_ms_a_job: float


class NoopPipeline:
    """A running no-op pipeline on one server, with its workers up."""

    def __init__(self, settings: QueueSettings, client: AsyncClient) -> None:
        self.settings = settings
        self.client = client
        self.keys = Keys.of_shard(settings.namespace, 0)
        self.scripts = Scripts(client, self.keys)
        self.incarnation = 0
        self._groups = 0
        self._position = "0-0"

    async def accept(self, jobs: int) -> list[Unit]:
        """Puts jobs into the queue, in groups."""
        template = JobTemplate(task="noop", expected_bytes=4096)
        template_body = codec.encode(template)
        prompt = codec.encode(Prompt(id="p", data={"question": QUESTION}))
        first = self._groups
        self._groups += jobs // MEMBERS
        units = [Unit(f"{RUN}.e0-{i}.0", MEMBERS, f"e0-{i}", 0, "1.0", prompt) for i in range(first, self._groups)]
        for at in range(0, len(units), UNITS_A_CALL):
            batch = units[at : at + UNITS_A_CALL]
            await self.scripts.accept(
                RUN, self.incarnation, template, "t", template_body, batch, max_waiting=10**7, window=self.settings.admit_window
            )
        return units

    async def read_results(self, jobs: int) -> None:
        """Reads until so many more jobs have ended."""
        reader = reader_client(self.settings, block_s=1.0)
        try:
            seen = 0
            while seen < jobs:
                reply = await ask(
                    reader, "XREAD", "COUNT", READ_COUNT, "BLOCK", 1000, "STREAMS", self.keys.results(RUN), self._position
                )
                for entry, _ in reply[0][1] if reply else ():
                    self._position = entry.decode()
                    seen += 1
        finally:
            await reader.aclose()

    async def measure(self, jobs: int) -> Measured:
        """Feeds, reads, acknowledges; the clock stops when the last result was read."""
        cpu_before = await self._redis_cpu_s()
        started_s = time.perf_counter()
        feeding = asyncio.create_task(self.accept(jobs), name="feed")
        await self.read_results(jobs)
        took_s = time.perf_counter() - started_s
        units = await feeding
        await self.scripts.ack(RUN, self.incarnation, [("", "group", unit.id) for unit in units])
        cpu_s = await self._redis_cpu_s() - cpu_before
        return Measured(jobs / took_s, cpu_s / jobs * 1000)

    async def _redis_cpu_s(self) -> float:
        cpu = await ask(self.client, "INFO", "cpu")
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])


@asynccontextmanager
async def noop_pipeline(url: str, *, processes: int = 1, slots: int = 128) -> AsyncIterator[NoopPipeline]:
    """Workers up and a run connected."""
    settings = QueueSettings(redis_url=url)
    client = command_client(settings)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, ChildProcesses(Path(folder), {"ROLLSTREAM_REDIS_URL": url}) as children:
        for number in range(processes):
            children.start(f"noop{number}", "ops.bench.noop_stages", f"node{number}", str(slots))
        pipeline = NoopPipeline(settings, client)
        pipeline.incarnation = await pipeline.scripts.connect_run(RUN, nonce=new_nonce(), ttl_s=3600)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            children.check()
            up = [int(await ask(client, "EXISTS", pipeline.keys.worker(f"eval-node{n}-0"))) for n in range(processes)]
            if all(up):
                break
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"workers not up in {START_TIMEOUT_S} s")
            await asyncio.sleep(0.05)
        await pipeline.accept(8 * 32)  # warm: scripts loaded, code compiled
        await pipeline.read_results(8 * 32)
        try:
            yield pipeline
        finally:
            await client.aclose()
