"""What the pipeline looks like now: stages, runs, steps, workers. Read only, a handful of commands a shard; `top` and the demo show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import redis

from pipeline.keys import Keys
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings


@dataclass(slots=True)
class StageLook:
    """One stage over all shards, classes and lanes."""

    waiting: int = 0
    """Claimable entries."""
    running: int = 0
    """Entries that a worker holds."""
    workers: int = 0
    slots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLook:
    """An open step of a run."""

    index: int
    accepted: int
    target: int
    members: int
    """Members a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLook:
    """One run."""

    name: str
    state: str
    waiting: int
    """Jobs in its queue."""
    in_flight: int
    reserve: int
    """Prompts that wait to be drawn."""
    outcomes: Mapping[str, int]
    groups: Mapping[str, int]
    steps: tuple[StepLook, ...]
    contact_s: float
    """Since its trainer gave a sign."""


@dataclass(slots=True)
class Look:
    """The pipeline at one moment."""

    stages: dict[Stage, StageLook] = field(default_factory=lambda: {stage: StageLook() for stage in Stage})
    runs: list[RunLook] = field(default_factory=list)
    delayed: int = 0
    dead: int = 0
    used_bytes: int = 0
    max_bytes: int = 0


async def look(client: AsyncClient, settings: QueueSettings) -> Look:
    """Reads it all.

    Raises:
        BrokerError: Redis does not answer, or not to this user.
    """
    found = Look()
    for shard in range(settings.shards):
        keys = Keys.of_shard(settings.namespace, shard)
        for stream in await ask(client, "SMEMBERS", keys.key("streams")):
            await _add_stream(client, keys, stream.decode(), found)
        for name in await ask(client, "ZRANGE", keys.key("runs"), 0, -1):
            run = await _run(client, keys, name.decode())
            if run is not None:
                found.runs.append(run)
        found.delayed += int(await ask(client, "ZCARD", keys.key("z:delay")))
        found.dead += int(await ask(client, "XLEN", keys.dead))
        await _add_workers(client, keys, found)
    memory = await ask(client, "INFO", "memory")
    found.used_bytes, found.max_bytes = int(memory["used_memory"]), int(memory["maxmemory"])
    return found


async def _add_stream(client: AsyncClient, keys: Keys, stream: str, found: Look) -> None:
    stage = found.stages[Stage(stream.split(":")[1])]
    length = int(await ask(client, "XLEN", keys.key(stream)))
    try:
        pending = int((await ask(client, "XPENDING", keys.key(stream), stream.split(":")[1]))["pending"])
    except redis.ResponseError:  # the group is being made or swept
        pending = 0
    stage.running += pending
    stage.waiting += max(0, length - pending)


async def _add_workers(client: AsyncClient, keys: Keys, found: Look) -> None:
    async for key in client.scan_iter(match=keys.worker("*").replace("{", "[{]"), count=500):
        stage, slots = await ask(client, "HMGET", key, "stage", "slots")
        if stage and stage.decode() in tuple(Stage):
            look = found.stages[Stage(stage.decode())]
            look.workers += 1
            look.slots += int(slots or 0)


async def _run(client: AsyncClient, keys: Keys, name: str) -> RunLook | None:
    raw = await ask(client, "HGETALL", keys.run(name))
    if not raw:
        return None
    fields = {key.decode(): value.decode() for key, value in raw.items()}
    steps = []
    for index in await ask(client, "ZRANGE", keys.steps(name), 0, 3):
        step = await ask(client, "HMGET", keys.step(name, int(index)), "st", "acc", "target", "n")
        if step[0] == b"open":
            steps.append(StepLook(index=int(index), accepted=int(step[1] or 0), target=int(step[2] or 0), members=int(step[3] or 0)))
    seconds, _ = await ask(client, "TIME")
    return RunLook(
        name=name,
        state=fields.get("st", "?") + (f", cancelled ({fields['cx']})" if fields.get("cx") else ""),
        waiting=int(await ask(client, "ZCARD", keys.queue(name))),
        in_flight=int(fields.get("inflight", 0)),
        reserve=int(await ask(client, "ZCARD", keys.reserve(name))),
        outcomes=_counters(fields, "out."),
        groups=_counters(fields, "groups."),
        steps=tuple(steps),
        contact_s=max(0.0, int(seconds) - int(fields.get("contact", 0)) / 1000),
    )


def _counters(fields: Mapping[str, str], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): int(value) for name, value in fields.items() if name.startswith(prefix)}
