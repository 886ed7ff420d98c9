"""What the pipeline looks like now: stages, runs, steps, workers. Read only, a handful of commands a shard; `top` and the demo show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.fleet import read_streams, read_workers
from pipeline.inference_pool import read_places
from pipeline.keys import Keys, run_ids
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask, redis_now_ms
from pipeline.samples import handed_to
from pipeline.settings import QueueSettings
from pipeline.supervisor.run_account import StepAccount, read_steps, texts, tokens_by_fate
from pipeline.together import together


@dataclass(slots=True)
class StageLook:
    """One stage over all shards, classes and lanes."""

    waiting: int = 0
    """Claimable entries."""
    running: int = 0
    """Entries that a worker holds."""
    workers: int = 0
    slots: int = 0
    ended: int = 0
    """Jobs that left it for good, those that were put back included; falls when a run or a lane is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLook:
    """One run."""

    name: str
    state: str
    incarnation: int
    version: str
    """Policy version that it has now; empty = its trainer has not said."""
    weight: float
    quota: int
    """Most jobs in flight; 0 = no bound."""
    waiting: int
    """Jobs in its queue."""
    in_flight: int
    reserve: int
    """Prompts that wait to be drawn."""
    unread: int
    """Records of results that nobody has acknowledged."""
    outcomes: Mapping[str, int]
    groups: Mapping[str, int]
    groups_in_flight: int
    tokens: Mapping[str, int]
    """Sampled ones by what became of them (`TokenFate`)."""
    shortage: str
    """What keeps it from having enough groups at work; empty = nothing."""
    steps: tuple[StepAccount, ...]
    """Open ones."""
    contact_s: float
    """Since its trainer gave a sign."""
    places: int
    """Jobs that may call the model, over all RUN workers and models; 0 = no worker says."""
    places_bound: int
    """As many as ops allow there."""
    held: int
    """Jobs at RUN workers that wait for a place (`docs/adr/0015-adaptive-concurrency.md`)."""
    acting: int
    """Jobs at RUN workers that have one: they have called the model, or try to."""

    @property
    def places_text(self) -> str:
        """Where fewer jobs may call the model than ops allow."""
        if not self.held and self.places >= self.places_bound:
            return ""
        return f"model places {self.places} of {self.places_bound}, {self.held} jobs held"


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
        streams = await read_streams(client, keys)
        for stream in streams:
            found.stages[stream.stage].running += stream.held
            found.stages[stream.stage].waiting += stream.waiting
        for worker in await read_workers(client, keys, streams):
            found.stages[worker.stage].workers += 1
            found.stages[worker.stage].slots += worker.slots
        names = run_ids(await ask(client, "ZRANGE", keys.runs, 0, -1))
        found.runs += [run for run in await together(*(look_at_run(client, keys, name) for name in names)) if run is not None]
        found.stages[Stage.INIT].ended += await handed_to(client, keys, Stage.RUN)
        found.stages[Stage.RUN].ended += await handed_to(client, keys, Stage.EVAL)
        found.delayed += int(await ask(client, "ZCARD", keys.key("z:delay")))
        found.dead += int(await ask(client, "XLEN", keys.dead))
    found.stages[Stage.EVAL].ended = sum(sum(run.outcomes.values()) for run in found.runs)
    memory = await ask(client, "INFO", "memory")
    found.used_bytes, found.max_bytes = int(memory["used_memory"]), int(memory["maxmemory"])
    return found


async def look_at_run(client: AsyncClient, keys: Keys, name: str) -> RunLook | None:
    """How one run stands; None when Redis does not know it.

    Raises:
        BrokerError: as `look`.
    """
    fields = texts(await ask(client, "HGETALL", keys.run(name)))
    if "inc" not in fields:
        return None
    now_ms = await redis_now_ms(client)
    places = (await read_places(client, keys.pool, name, now_ms)).values()
    waiting = 0
    for capability in {"none", *(word.decode() for word in await ask(client, "SMEMBERS", keys.key("classes")))}:
        waiting += int(await ask(client, "ZCARD", keys.queue(name, capability)))
    return RunLook(
        name=name,
        state=state_of(fields),
        incarnation=int(fields["inc"]),
        version=f"{fields['inc']}.{fields['ver']}" if "ver" in fields else "",
        weight=float(fields.get("weight", "1")),
        quota=int(fields.get("quota", "0")),
        waiting=waiting,
        in_flight=int(fields.get("inflight", 0)),
        reserve=int(await ask(client, "ZCARD", keys.reserve(name))),
        unread=int(await ask(client, "XLEN", keys.results(name))),
        outcomes=_counters(fields, "out."),
        groups=_counters(fields, "groups."),
        groups_in_flight=int(await ask(client, "ZCARD", keys.flying(name))),
        tokens=tokens_by_fate(fields),
        shortage=fields.get("short", ""),
        steps=tuple(step for step in await read_steps(client, keys, name, fields, last=0) if step.is_open),
        contact_s=max(0.0, (now_ms - int(fields.get("contact", 0))) / 1000),
        places=sum(said.limit for said in places),
        places_bound=sum(said.bound for said in places),
        held=sum(said.held for said in places),
        acting=sum(said.acting for said in places),
    )


def state_of(fields: Mapping[str, str]) -> str:
    """State of a run in words, from its hash."""
    if fields.get("cx") and fields.get("st") == "open":
        return f"cancelled ({fields['cx']})"
    state = fields.get("st", "?") + (f" ({fields['why']})" if fields.get("why") else "")
    return "paused" if state == "open" and fields.get("paused") == "1" else state


def _counters(fields: Mapping[str, str], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): int(value) for name, value in fields.items() if name.startswith(prefix)}
