"""From a goal and latencies to what has to be there, by Little's law: what is busy at once = jobs a second x how long a job keeps it busy.

No Redis, no clock, no files. Head room h means that a share h of what is sized stays free in the mean: busy / (1 - h), rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ops.plan import costs
from ops.plan.settings import PlanSettings
from pipeline.messages import Stage
from workers.settings import MOST_DEFAULT_SLOTS

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNeed:
    """What one stage needs."""

    busy: float
    """Slots that have a job, in the mean."""
    slots: int
    processes: int
    """Of the default size."""
    slots_a_node: int
    nodes: int
    """So many of that size have the slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeed:
    """What the model servers have to bear, all together."""

    calls: float
    """At once, in the mean."""
    servers: int
    sampled_tokens_per_s: float
    prompt_tokens_per_s: float
    """That are new to the server that has the job's prefix in its cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisNeed:
    """What Redis has to bear."""

    cpu_share: float
    """Of a core like the one that the costs were measured on."""
    shards: int
    memory_bytes: Mapping[str, float]
    """By what stands there."""
    reserved_bytes: float
    """That admission counts as used beside it: what open jobs were accepted with (`expected_bytes`), until they end."""
    maxmemory_bytes: int
    """For the server's bound: admission refuses jobs when `ADMISSION_SHARE` of it is used."""
    aof_bytes_an_hour: float
    """Appended. The file is rewritten when it has doubled, so it does not grow to that."""
    disk_bytes: int
    """For the file, its growth to the next rewrite, and the copy that the rewrite makes."""
    in_bytes_per_s: float
    out_bytes_per_s: float
    """To workers and the trainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is needed for a goal."""

    asked: PlanSettings
    jobs_per_s: float
    """That begin. Those of filtered groups and wasted ones are among them."""
    job_s: float
    """From INIT to its end, with a free slot in each stage."""
    trajectory_bytes: float
    stages: Mapping[Stage, StageNeed]
    nodes: int
    """The most that any stage needs."""
    deciding: Stage
    """That stage."""
    node_slots: Mapping[Stage, int]
    """Of each of so many nodes: what there is to have, spread evenly."""
    models: ModelNeed
    redis: RedisNeed


def jobs_per_s(asked: PlanSettings) -> float:
    """Jobs that have to begin a second for the goal."""
    return asked.groups * asked.group_size / asked.step_s / (1 - asked.filtered) / (1 - asked.wasted)


def rate_of_slots(slots: int, busy_s: float) -> float:
    """Jobs a second that slots bear when all of them are busy, each job keeping one for `busy_s`."""
    return slots / busy_s


def busy_s(asked: PlanSettings) -> dict[Stage, float]:
    """How long a job keeps a slot of each stage."""
    return {
        Stage.INIT: asked.init_s,
        Stage.RUN: asked.turns * (asked.model_s + asked.tool_s),
        Stage.EVAL: asked.eval_s,
    }


def with_room(busy: float, head_room: float) -> int:
    """So many, rounded up, that a share stays free; at least one."""
    return max(1, math.ceil(round(busy / (1 - head_room), 6)))


def make_plan(
    asked: PlanSettings, slots_a_node: Mapping[Stage, int], trajectory_bytes: float | None = None, *, lease_s: float = 30.0
) -> Plan:
    """All of it.

    Args:
        slots_a_node: of each stage, on a node as it is set up.
        trajectory_bytes: of a job, where that was measured; by default from its tokens.
        lease_s: of the queue; the shorter, the more renewals.
    """
    rate, busy = jobs_per_s(asked), busy_s(asked)
    stages = {stage: _stage_need(stage, rate * busy[stage], asked.head_room, slots_a_node[stage]) for stage in Stage}
    deciding = max(Stage, key=lambda stage: stages[stage].nodes)
    body = costs.trajectory_bytes(asked) if trajectory_bytes is None else trajectory_bytes
    calls = rate * asked.turns * asked.model_s
    return Plan(
        asked=asked,
        jobs_per_s=rate,
        job_s=sum(busy.values()),
        trajectory_bytes=body,
        stages=stages,
        nodes=stages[deciding].nodes,
        deciding=deciding,
        node_slots={stage: math.ceil(stages[stage].slots / stages[deciding].nodes) for stage in Stage},
        models=ModelNeed(
            calls=calls,
            servers=with_room(calls / asked.server_calls, asked.head_room),
            sampled_tokens_per_s=rate * asked.turns * asked.sampled_tokens,
            prompt_tokens_per_s=rate * (asked.prompt_tokens + (asked.turns - 1) * asked.observation_tokens),
        ),
        redis=_redis_need(asked, rate, sum(busy.values()), body, stages, lease_s),
    )


def _stage_need(stage: Stage, busy: float, head_room: float, slots_a_node: int) -> StageNeed:
    slots = with_room(busy, head_room)
    return StageNeed(
        busy=busy,
        slots=slots,
        processes=math.ceil(slots / MOST_DEFAULT_SLOTS[stage]),
        slots_a_node=slots_a_node,
        nodes=math.ceil(slots / slots_a_node),
    )


def _redis_need(
    asked: PlanSettings, rate: float, job_s: float, body: float, stages: Mapping[Stage, StageNeed], lease_s: float
) -> RedisNeed:
    leases = sum(need.busy * costs.LEASES_HELD[stage] for stage, need in stages.items())
    of_jobs = rate * costs.CPU_US.of(asked.turns, body) / 1e6
    of_leases = leases * costs.RENEWALS_A_LEASE / lease_s * costs.RENEW_US / 1e6
    of_processes = sum(need.processes for need in stages.values()) * costs.REST_SHARE_A_PROCESS
    cpu_share = of_jobs + of_leases + of_processes
    memory = _memory(asked, rate, job_s, body)
    reserved = rate * job_s * costs.RESERVED_BYTES
    maxmemory = math.ceil((sum(memory.values()) + reserved) / costs.ADMISSION_SHARE / (1 - asked.head_room))
    results = asked.groups * asked.group_size / asked.step_s
    return RedisNeed(
        cpu_share=cpu_share,
        shards=max(1, math.ceil(cpu_share / costs.FULL_SHARE)),
        memory_bytes=memory,
        reserved_bytes=reserved,
        maxmemory_bytes=maxmemory,
        aof_bytes_an_hour=rate * costs.AOF_BYTES.of(asked.turns, body) * HOUR_S,
        disk_bytes=costs.AOF_COPIES * maxmemory,
        in_bytes_per_s=rate * costs.IN_BYTES.of(asked.turns, body),
        out_bytes_per_s=rate * costs.OUT_BYTES.of(asked.turns, body) + results * body,  # the trainer reads those of its groups
    )


def _memory(asked: PlanSettings, rate: float, job_s: float, body: float) -> dict[str, float]:
    """Bytes by what stands in Redis. Open jobs count with the whole of their trajectory: a step's last ones stand shortly before their
    end."""
    open_jobs = rate * job_s
    kept = asked.unread_steps * asked.groups * asked.group_size
    return {
        "open jobs": open_jobs * (costs.OPEN_JOB_BYTES + body),
        "unread results": kept * (costs.RESULT_BYTES + body),
        "reserve of prompts": asked.reserve * (costs.RESERVE_BYTES + asked.prompt_tokens * costs.TEXT_BYTES_A_TOKEN),
        "tombstones": rate / asked.group_size * costs.TOMBSTONE_S * costs.TOMBSTONE_BYTES,
        "the server itself": costs.SERVER_BYTES,
    }
