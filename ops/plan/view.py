"""A plan for people and for programs."""

from __future__ import annotations

import math
from dataclasses import asdict

from ops.plan.costs import ADMISSION_SHARE, CONDITIONS, FULL_SHARE
from ops.plan.measured import Measured
from ops.plan.sizing import Plan
from pipeline.counts import counted
from pipeline.messages import Stage

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def as_map(plan: Plan, measured: Measured | None = None) -> dict[str, object]:
    """For JSON: as the fields; `measured` says what came from a run."""
    found = asdict(plan)
    found["asked"] = plan.asked.model_dump()
    found["stages"] = {stage.value: asdict(need) for stage, need in plan.stages.items()}
    found["deciding"] = plan.deciding.value
    found["node_slots"] = {stage.value: slots for stage, slots in plan.node_slots.items()}
    return found | {"measured": None if measured is None else asdict(measured)}


def as_text(plan: Plan, measured: Measured | None = None) -> list[str]:
    """Lines of a page, at most 100 wide."""
    asked, models, redis = plan.asked, plan.models, plan.redis
    lines = [
        f"{asked.groups} groups of {asked.group_size} in {asked.step_s:g} s, {asked.filtered:.0%} filtered, {asked.wasted:.0%} wasted:"
        f" {plan.jobs_per_s:.2f} jobs/s begin, each takes {plan.job_s:.1f} s",
        f"head room: {asked.head_room:.0%} of slots, model servers and memory stays free",
    ]
    if measured is not None:
        jobs, kept = counted(measured.jobs, "job"), counted(measured.trajectories, "trajectory", "trajectories")
        lines.append(f"of the run: {', '.join(sorted(measured.values))} ({jobs}, {kept})")
    lines += ["", f"{'':6s}{'busy':>10s}{'slots':>8s}{'processes':>11s}{'slots a node':>14s}{'nodes':>7s}"]
    for stage in Stage:
        need = plan.stages[stage]
        row = f"{need.busy:>10.1f}{need.slots:>8,}{need.processes:>11,}{need.slots_a_node:>14,}{need.nodes:>7,}"
        lines.append(f"{stage.value.upper():6s}{row}")
    calls = f"{asked.server_calls} a server at {asked.model_s:g} s a call"
    sizes = " ".join(f"--{stage.value} {slots}" for stage, slots in plan.node_slots.items())
    rates = f"together {models.sampled_tokens_per_s:,.0f} tokens/s sampled, {models.prompt_tokens_per_s:,.0f} read"
    memory = ", ".join(f"{name} {bytes_text(size)}" for name, size in redis.memory_bytes.items())
    reserved = f"with {bytes_text(redis.reserved_bytes)} that is reserved for open jobs"
    hourly, network = (
        bytes_text(redis.aof_bytes_an_hour),
        f"{bytes_text(redis.in_bytes_per_s)}/s in, {bytes_text(redis.out_bytes_per_s)}/s out",
    )
    rows = {
        "nodes": f"{plan.nodes}, since {plan.deciding.value.upper()} needs them; each: ./ops/launch node {sizes}",
        "model servers": f"{models.servers} for {models.calls:.1f} calls at once ({calls}); {rates}",
        "Redis CPU": f"{redis.cpu_share:.1%} of a core ({CONDITIONS}); full at {FULL_SHARE:.0%}: {_shards(redis.shards)}",
        "Redis memory": f"{bytes_text(sum(redis.memory_bytes.values()))}: {memory}",
        "maxmemory": f"{bytes_text(redis.maxmemory_bytes)}: jobs are refused at {ADMISSION_SHARE:.0%} of it, {reserved}",
        "Redis disk": f"{hourly} appended an hour; {bytes_text(redis.disk_bytes)} for the file and its rewrite",
        "Redis network": f"{network}; {bytes_text(plan.trajectory_bytes)} a trajectory",
    }
    lines += ["", *(f"{name:14s} {text}" for name, text in rows.items())]
    return lines


def _shards(shards: int) -> str:
    return "one is enough" if shards == 1 else f"{shards} shards, over which whole runs are spread"


def bytes_text(size: float) -> str:
    """`1.5 GiB`."""
    power = min(len(UNITS) - 1, max(0, int(math.log(size, 1024)))) if size >= 1 else 0
    scaled = size / 1024**power
    return f"{scaled:.0f} {UNITS[power]}" if power == 0 or scaled >= 100 else f"{scaled:.1f} {UNITS[power]}"
