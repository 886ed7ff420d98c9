"""What it costs to keep 10,000 leases, with the thread and the script that keep them.

The jobs are real: accepted, delivered to one consumer and begun by it. The keeper's thread renews all of them, round after round without a
pause; what a round costs the server and this process is set against the time between two rounds.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from ops.bench.noop_pipeline import NoopPipeline, open_run
from ops.bench.report import Report
from ops.bench.servers import bench_server, bench_server_kind, version_of
from pipeline.leases import RENEWALS_A_LEASE, LeasedJob, LeaseKeeper
from pipeline.messages import Stage
from pipeline.redis_client import SyncClient, reader_client, thread_client
from pipeline.scripts import Held, NameHolder
from pipeline.scripts.calls import MAX_BATCH
from pipeline.settings import QueueSettings
from pipeline.streams import BLOCK_S, StreamReader
from pipeline.testing.servers import ServerKind

LEASES = 10_000
ROUNDS = 8
CONSUMER, BOOT, NODE = "init-bench-0", "bench", "bench"
BOUNDS = {"core_share_ratio": ("<=", 0.02)}


class BusyJob:
    """A job that is at work all the time."""

    def __init__(self, held: Held) -> None:
        self.held = held

    def makes_progress(self, now_s: float) -> bool:
        """It does."""
        return True


class Rounds:
    """What a keeper asks at the start of each round: gives it the jobs, notes the CPU used so far, and asks for another round at once.

    Args:
        client: for the server's CPU, used from the keeper's thread.
    """

    def __init__(self, jobs: list[LeasedJob], client: SyncClient) -> None:
        self.over = asyncio.Event()
        self.again: Callable[[], None] = lambda: None
        self.lost: list[str] = []
        self._jobs = jobs
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._marks: list[tuple[float, float]] = []

    def next(self) -> list[LeasedJob]:
        """Called by the keeper's thread. The first round warms up, and the one after the last only ends it."""
        cpu = self._client.info("cpu")
        self._marks.append((float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]), time.process_time()))
        if len(self._marks) == ROUNDS + 2:
            self._loop.call_soon_threadsafe(self.over.set)
            return []
        self.again()
        return self._jobs

    def cost(self) -> RoundCost:
        """Of one round, in the mean."""
        first, last = self._marks[1], self._marks[-1]
        return RoundCost((last[0] - first[0]) / ROUNDS, (last[1] - first[1]) / ROUNDS)


@dataclass(frozen=True, slots=True)
class RoundCost:
    """CPU of one renewal of all leases, seconds."""

    server_s: float
    client_s: float


def run(say: Callable[[str], None]) -> Report:
    """Share of a core, of server and client together."""
    kind = bench_server_kind()
    settings = QueueSettings()
    cost = asyncio.run(measure(kind, LEASES, say))
    period_s = settings.lease_s / RENEWALS_A_LEASE
    return Report(
        name="leases",
        metrics={
            "core_share_ratio": (cost.server_s + cost.client_s) / period_s,
            "server_share_ratio": cost.server_s / period_s,
            "client_share_ratio": cost.client_s / period_s,
            "server_us_a_lease": cost.server_s / LEASES * 1e6,
            "client_us_a_lease": cost.client_s / LEASES * 1e6,
        },
        bounds=BOUNDS,
        versions={kind.name: version_of(kind)},
    )


async def measure(kind: ServerKind, leases: int, say: Callable[[str], None]) -> RoundCost:
    """Begins so many jobs on a server of its own and renews them, `ROUNDS` times."""
    with bench_server(kind, "everysec") as server:
        settings = QueueSettings(redis_url=server.url, admit_window=leases)
        async with open_run(settings) as pipeline:
            jobs: list[LeasedJob] = [BusyJob(held) for held in await _begin(pipeline, leases)]
            say(f"{len(jobs):,} jobs begun; renewing all of them {ROUNDS} times")
            with thread_client(settings) as client:
                rounds = Rounds(jobs, client)
                keeper = LeaseKeeper(
                    settings,
                    pipeline.keys,
                    Stage.INIT,
                    CONSUMER,
                    BOOT,
                    NameHolder(NODE, leases, os.getpid(), version="bench"),
                    snapshot=rounds.next,
                    on_verdict=lambda _, word: rounds.lost.append(word),
                    on_usurped=lambda: rounds.lost.append("another process"),
                    beat=("none", False),
                )
                rounds.again = keeper.wake
                async with keeper:
                    await rounds.over.wait()
            if rounds.lost:
                raise RuntimeError(f"{len(rounds.lost)} leases were lost while they were renewed, the first to {rounds.lost[0]}")
            return rounds.cost()


async def _begin(pipeline: NoopPipeline, leases: int) -> list[Held]:
    """Jobs delivered to one consumer and begun by it."""
    reader_connection = reader_client(pipeline.settings, block_s=BLOCK_S)
    stream = pipeline.keys.stage_stream(Stage.INIT)
    reader = StreamReader(reader_connection, pipeline.client, pipeline.keys, Stage.INIT, CONSUMER, [stream])
    held: list[Held] = []
    try:
        await reader.open()
        await pipeline.accept(leases)
        while len(held) < leases:
            claims, _ = await reader.read(MAX_BATCH, block=True, held=(), most_streams=1)
            lock_ms = int(pipeline.settings.lease_s * 1000)
            begun = await pipeline.scripts.begin(Stage.INIT, CONSUMER, BOOT, claims, lock_ms=lock_ms, window=leases)
            held += [Held(b.claim.stream, b.claim.entry, b.claim.job, b.attempt) for b in begun]
    finally:
        await reader_connection.aclose()
    return held
