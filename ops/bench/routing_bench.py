"""Routing in virtual time: the pool's own scripts on a private Redis, against a heap of counts, round robin and consistent hashing.

Same jobs for all, several seeds, four scenes: nothing happens; a fourth server joins; one of four dies; all rise one after the other, and
the first has all jobs by then. Ratios are of one run of this program.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence

from ops.bench.report import Report
from ops.bench.routing_cost import script_costs
from ops.bench.routing_jobs import MEMBERS, draw_jobs
from ops.bench.routing_policies import BoundedHashing, ConsistentHashing, CountHeap, Policy, Pool, RoundRobin
from ops.bench.routing_simulation import Happening, Outcome, Simulation
from ops.bench.servers import bench_server, bench_server_kind
from pipeline.inference_pool import InferencePool, PoolLooks
from pipeline.inference_pool.pool import LAX
from pipeline.redis_client import AsyncClient, command_client
from pipeline.settings import QueueSettings

JOBS, SLOTS, SEEDS = 500, 128, (1, 2, 3, 4, 5)
SERVERS = ("http://s1", "http://s2", "http://s3", "http://s4")
SCENES = ("steady", "joins", "dies", "rises")
RISE_S = 15.0
"""From one server to the next where they come up one after the other."""
LEASE_S = 3600.0
"""Virtual time is not Redis's: no lease runs out in it."""
OURS, HASHING = "pool", "hashing"
RIVALS: dict[str, Callable[[], Policy]] = {
    "counts": CountHeap,
    "robin": RoundRobin,
    HASHING: ConsistentHashing,
    "bounded": BoundedHashing,
}
Outcomes = dict[tuple[str, str], list[Outcome]]
"""By scene and policy, one a seed."""


def run(say: Callable[[str], None]) -> Report:
    """All seeds, scenes and policies."""
    kind = bench_server_kind()
    with bench_server(kind, "none") as server:
        settings = QueueSettings(redis_url=server.url)
        costs = asyncio.run(costs_of(settings))
        outcomes = asyncio.run(simulate_all(settings, say, jobs_count=JOBS, lax=LAX, seeds=SEEDS))
    metrics = {**figures(outcomes), **costs}
    bounds = {
        **{f"{scene}_makespan_ratio": ("<=", 1.10) for scene in SCENES},
        **{f"{scene}_hits_ratio": (">=", 0.90) for scene in SCENES},
        "joiner_share_ratio": (">=", 0.70),
        "joiner_peak_ratio": ("<=", 1.40),
        "dies_lost_turns_ratio": ("<=", 1.0),
    }
    return Report(name="routing", metrics=metrics, bounds=bounds, table=tuple(table(outcomes)))


async def costs_of(settings: QueueSettings) -> dict[str, float]:
    """What the scripts cost."""
    client = command_client(settings)
    try:
        return await script_costs(client, "cost")
    finally:
        await client.aclose()


async def simulate_all(settings: QueueSettings, say: Callable[[str], None], *, jobs_count: int, lax: int, seeds: Sequence[int]) -> Outcomes:
    """Everything.

    Args:
        lax: the pool's room for members of a group.
    """
    outcomes: Outcomes = {}
    client = command_client(settings)
    try:
        for seed in seeds:
            say(f"seed {seed}: {jobs_count} jobs in groups of {MEMBERS}, {SLOTS} at once")
            jobs = draw_jobs(jobs_count, seed)
            for scene in SCENES:
                third_s = outcomes["steady", OURS][-1].makespan_s / 3 if scene != "steady" else 0.0
                joins = [Happening(third_s, SERVERS[-1], True)] if scene == "joins" else []
                dies = [Happening(third_s, SERVERS[-1], False)] if scene == "dies" else []
                rises = [Happening(RISE_S * number, server, True) for number, server in enumerate(SERVERS) if number]
                happenings = {"steady": [], "joins": joins, "dies": dies, "rises": rises}[scene]
                first = {"joins": SERVERS[:-1], "rises": SERVERS[:1]}.get(scene, SERVERS)
                for name, policy in _policies(client, settings, f"{scene}{seed}", lax).items():
                    outcome = await Simulation(jobs, policy, first, happenings, slots=SLOTS).run()
                    outcomes.setdefault((scene, name), []).append(outcome)
    finally:
        await client.aclose()
    return outcomes


def _policies(client: AsyncClient, settings: QueueSettings, run: str, lax: int) -> dict[str, Policy]:
    namespace = f"{settings.namespace}{run}"
    pool = InferencePool(client, namespace, lease_s=LEASE_S, lax=lax)
    return {OURS: Pool(pool, PoolLooks(client, namespace), "bench"), **{name: rival() for name, rival in RIVALS.items()}}


def figures(outcomes: Outcomes) -> dict[str, float]:
    """Means over seeds; ratios a seed, then their mean."""
    found: dict[str, float] = {}
    for scene in SCENES:
        ours = outcomes[scene, OURS]
        best = [min(outcomes[scene, rival][at].makespan_s for rival in RIVALS) for at in range(len(ours))]
        hashing = outcomes[scene, HASHING]
        found[f"{scene}_makespan_ratio"] = statistics.fmean(one.makespan_s / least for one, least in zip(ours, best, strict=True))
        found[f"{scene}_hits_ratio"] = statistics.fmean(one.hit_rate / other.hit_rate for one, other in zip(ours, hashing, strict=True))
        found[f"{scene}_spread_ratio"] = statistics.fmean(one.spread for one in ours)
    joined = outcomes["joins", OURS]
    found["joiner_share_ratio"] = statistics.fmean(one.joiner_share for one in joined)
    found["joiner_peak_ratio"] = max(one.joiner_peak for one in joined)
    found["joiner_backlog_s"] = max(one.joiner_backlog_s for one in joined)
    died = outcomes["dies", OURS]
    found["dies_lost_turns_ratio"] = sum(one.lost_turns for one in died) / sum(one.in_flight_at_death for one in died)
    return found


def table(outcomes: Outcomes) -> list[str]:
    """A line a scene and policy."""
    lines = [f"{'scene':8s} {'policy':8s} {'makespan':>9s} {'spread':>7s} {'hits':>7s}  joiner: share, peak, line   turns again"]
    for (scene, name), found in outcomes.items():

        def mean(field: str, found: list[Outcome] = found) -> float:
            return statistics.fmean(getattr(one, field) for one in found)

        joiner = f"{mean('joiner_share'):.2f} {mean('joiner_peak'):.2f} {mean('joiner_backlog_s'):.1f} s" if scene == "joins" else ""
        died = f"{mean('lost_turns'):.1f} of {mean('in_flight_at_death'):.1f} in flight" if scene == "dies" else ""
        lines.append(
            f"{scene:8s} {name:8s} {mean('makespan_s'):7.1f} s {mean('spread'):7.3f} {mean('hit_rate'):7.3f}  {joiner:26s}  {died}".rstrip()
        )
    return lines
