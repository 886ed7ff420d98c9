"""What more nodes bring, and what the loss of one costs: three nodes, each `rollstream node run` in a network namespace of its own, with
its own address and folders, on one Redis that they reach by TCP. Rollouts sleep (`nodes_task`), so that one machine has the slots of
three.

Throughput is the number of slots that are busy with rollouts that come to their end, in the mean of a window; jobs always wait.

    common   no job needs an environment: all wait in the common stream of RUN
    lanes    as many jobs with a sandbox are open as fill nine of ten RUN slots, each bound to the lane of the node that made it, while
    common
             work waits: what a lane leaves free must be filled by it, and neither may keep the other from it

Then a node is lost with all its processes. Its running jobs begin again elsewhere, once, and that is all it may cost. The story of a job
for which it cost more, or that has no good end, is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ops.bench.nodes_fleet import Fleet, open_fleet
from ops.bench.nodes_task import TASK, Sleep, busy_slots
from ops.bench.report import Report
from ops.bench.servers import bench_server_kind, version_of
from ops.job.story import job_story
from ops.plan import PlanSettings, make_plan
from pipeline.keys import Keys
from pipeline.messages import Outcome, Stage
from pipeline.redis_client import ask
from trainer_client import JobRequest, connect

NODES = 3
SLOTS = 8
"""Of RUN, a node."""
INIT_SLOTS, EVAL_SLOTS = 2, 2
SLEEP_S = 8.0
LANE_SHARE = 0.9
COMMON_SHARE = 1.5
"""Of the RUN slots: so many common jobs are in flight, so that some wait and a job that begins again stands behind few."""
JOBS = 1200
"""That wait, of each kind: more than are done."""
RAMP_S, WINDOW_S = 12.0, 32.0
LEASE_S = 15.0
"""A lost node's jobs begin again after it."""
RETURN_S = 400.0
"""For all of them to end. The last took 83 to 85 s, at loads of 4 to 35: a lease, then what waits in the common stream, for which lanes
leave four slots. One that is lost again, by a stall that is longer than its lease, does all of that twice."""
SIZES = ("--init", str(INIT_SLOTS), "--run", str(SLOTS), "--eval", str(EVAL_SLOTS), "--no-supervisor", "--grace-s", "30")

BOUNDS = {
    "common_ratio": (">=", 2.8),
    "lanes_ratio": (">=", 2.8),
    "planned_rate_ratio": (">=", 0.85),
    "others_busy_ratio": (">=", 0.93),
    "begun_again_besides": ("<=", 0.0),
    "cut_without_end": ("<=", 0.0),
}


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, by the monotonic clock."""

    from_s: float
    to_s: float


def run(say: Callable[[str], None]) -> Report:
    """One node, three nodes, two nodes; five minutes."""
    return asyncio.run(_run(say))


async def _run(say: Callable[[str], None]) -> Report:
    kind = bench_server_kind()
    windows: dict[str, Window] = {}
    async with open_fleet(NODES, SIZES, LEASE_S) as fleet:
        await fleet.start(1)
        async with _work(fleet, "common1", SLOTS):
            windows["common1"] = await _window(say, "one node, common work")
            async with _work(fleet, "lanes1", SLOTS, local=True):
                windows["lanes1"] = await _window(say, "one node, lanes and common work")
        await fleet.start(2, 3)
        async with _work(fleet, "common3", NODES * SLOTS):
            windows["common3"] = await _window(say, "three nodes, common work")
            async with _work(fleet, "lanes3", NODES * SLOTS, local=True):
                windows["lanes3"] = await _window(say, "three nodes, lanes and common work")
                lost = fleet.nodes[-1]
                lost.kill()
                killed_s = time.monotonic()
                cut = {sleep.job for sleep in fleet.sleeps() if sleep.node == lost.name and sleep.ended_s is None}
                say(f"node {lost.name} is lost with {len(cut)} running jobs; load {os.getloadavg()[0]:.1f}")
                await _all_ended(fleet, cut)
                windows["loss"] = Window(killed_s, max(killed_s + WINDOW_S, time.monotonic()))
                await asyncio.sleep(max(0.0, windows["loss"].to_s + SLEEP_S - time.monotonic()))
                records = await _records(fleet)
                for job in sorted(cut_again(fleet.sleeps(), cut) | without_end(records, cut)):
                    say(await _story(fleet, job))
        sleeps = fleet.sleeps()
        left_out = () if fleet.network else ("network namespaces (they need root, ip and nsenter): the nodes share this host's network",)
    return report_of(sleeps, windows, cut, lost.name, records, left_out, {kind.name: version_of(kind)})


def report_of(
    sleeps: list[Sleep],
    windows: dict[str, Window],
    cut: set[str],
    lost: str,
    records: Counter[tuple[str, str]],
    left_out: tuple[str, ...],
    versions: dict[str, str],
) -> Report:
    """What the accounts of all nodes say.

    Args:
        cut: jobs that ran on the lost node.
        records: terminal records, by job and outcome.
    """
    busy = {name: busy_slots(sleeps, window.from_s, window.to_s) for name, window in windows.items()}
    local = {name: busy_slots([s for s in sleeps if s.job.startswith("lanes")], windows[name].from_s, windows[name].to_s) for name in busy}
    left = [sleep for sleep in sleeps if sleep.node != lost]
    again = {job for job, times in Counter(sleep.job for sleep in sleeps).items() if times > 1}
    besides = (again - cut) | cut_again(sleeps, cut)
    killed_s = windows["loss"].from_s
    return_s = [sleep.began_s - killed_s for sleep in left if sleep.job in cut and sleep.began_s > killed_s]
    slots = NODES * SLOTS
    goal = PlanSettings(
        groups=slots, group_size=1, step_s=SLEEP_S, filtered=0, wasted=0, turns=1, model_s=SLEEP_S, tool_s=0, head_room=0
    )  # as many jobs as all slots bear
    planned = make_plan(goal, dict.fromkeys(Stage, SLOTS))
    if planned.stages[Stage.RUN].slots != slots:
        raise RuntimeError(f"the plan asks for {planned.stages[Stage.RUN].slots} slots, expected {slots}")
    metrics = {
        "common_ratio": busy["common3"] / busy["common1"],
        "lanes_ratio": busy["lanes3"] / busy["lanes1"],
        **{f"{name}_busy_slots": busy[name] for name in ("common1", "common3", "lanes1", "lanes3")},
        "lanes1_local_ratio": local["lanes1"] / SLOTS,
        "lanes3_local_ratio": local["lanes3"] / slots,
        "planned_rate_ratio": busy["common3"] / SLEEP_S / planned.jobs_per_s,
        "others_busy_ratio": busy_slots(left, windows["loss"].from_s, windows["loss"].to_s) / ((NODES - 1) * SLOTS),
        "cut_jobs": float(len(cut)),
        "cut_begun_again_s": max(return_s, default=0.0),
        "begun_again_besides": float(len(besides)),
        "cut_without_end": float(len(without_end(records, cut))),
    }
    return Report(name="nodes", metrics=metrics, bounds=BOUNDS, left_out=left_out, versions=versions)


def cut_again(sleeps: list[Sleep], cut: set[str]) -> set[str]:
    """Jobs of the lost node that began a third time: they were lost or failed once more, and waited for their turn once more."""
    begun = Counter(sleep.job for sleep in sleeps)
    return {job for job in cut if begun[job] > 2}


def without_end(records: Counter[tuple[str, str]], cut: set[str]) -> set[str]:
    """Jobs of the lost node that have not ended well, once."""
    return {each for each in cut if [out for job, out in records.elements() if job == each] != [Outcome.OK]}


async def _story(fleet: Fleet, job: str) -> str:
    """Where a job stands, and what became of its attempts."""
    story = await job_story(fleet.client, Keys.of_shard(fleet.queue.namespace, 0), job)
    return "; ".join((f"{job}: {story.state}", *(attempt.line() for attempt in story.attempts)))


async def _window(say: Callable[[str], None], what: str) -> Window:
    await asyncio.sleep(RAMP_S)
    from_s = time.monotonic()
    await asyncio.sleep(WINDOW_S)
    say(f"{what}: measured over {WINDOW_S:g} s; load {os.getloadavg()[0]:.1f}")
    return Window(from_s, from_s + WINDOW_S)


@asynccontextmanager
async def _work(fleet: Fleet, run_id: str, slots: int, *, local: bool = False) -> AsyncIterator[None]:
    """A run with jobs that wait; cancelled afterwards.

    Args:
        slots: of RUN, that its jobs in flight are counted by.
        local: its jobs need a sandbox, and as many are in flight as fill nine of ten slots; else half as many again as there are slots.
    """
    async with connect(fleet.queue, run=run_id, quota=round((LANE_SHARE if local else COMMON_SHARE) * slots)) as run:
        prompt = {"seconds": SLEEP_S, "local": local}
        await run.submit([JobRequest(id=f"j{number}", task=TASK, prompt=prompt) for number in range(JOBS)])
        yield
        await run.cancel()


async def _all_ended(fleet: Fleet, jobs: set[str]) -> None:
    """However they end, or after `RETURN_S`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RETURN_S):
            while True:
                if jobs <= {job for job, _ in await _records(fleet)}:
                    return
                await asyncio.sleep(0.5)


async def _records(fleet: Fleet) -> Counter[tuple[str, str]]:
    """Terminal records, by job and outcome."""
    keys = Keys.of_shard(fleet.queue.namespace, 0)
    found: Counter[tuple[str, str]] = Counter()
    for run_id in ("common3", "lanes3"):
        for _, fields in await ask(fleet.client, "XRANGE", keys.results(run_id), "-", "+"):
            found[fields[b"job"].decode(), fields[b"out"].decode()] += 1
    return found


__all__ = ["BOUNDS", "report_of", "run"]
