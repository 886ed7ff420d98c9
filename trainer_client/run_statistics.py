"""How a run is doing, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.supervisor.run_account import Monitors, read_monitors, texts, tokens_by_fate
from trainer_client.seen_jobs import SeenJobs

OUTCOME, GROUPS, PROMPTS, EPOCH = "out.", "groups.", "prompts.", "epoch."


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCount:
    """What became of the prompts of one epoch (ids `e<epoch>-<row>`): pushed = trained + filtered + dead + left."""

    pushed: int = 0
    trained: int = 0
    filtered: int = 0
    dead: int = 0

    @property
    def left(self) -> int:
        """In the reserve or in flight."""
        return self.pushed - self.trained - self.filtered - self.dead


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatistics:
    """Counts over the life of the run, and what this client has seen of its results."""

    accepted: int
    """Jobs that entered the queue of the run."""
    waiting: int
    """Jobs in that queue."""
    in_flight: int
    """Jobs that were admitted and have not ended."""
    outcomes: Mapping[str, int]
    """Ended jobs by outcome."""
    groups: Mapping[str, int]
    """Groups launched, given up, and by verdict."""
    prompts: Mapping[str, int]
    """Prompts pushed, and those that are done with by how."""
    epochs: Mapping[int, EpochCount]
    """The same an epoch, of this history of the run."""
    reserve: int
    """Prompts that wait to be drawn."""
    groups_in_flight: int
    steps_reached: int
    tokens: Mapping[str, int]
    """Sampled tokens of jobs whose group has its verdict, and of single jobs, by what became of them (`TokenFate`)."""
    monitors: Monitors
    """Length bias, and what keeps the fleet from working."""
    seen_jobs: int
    """Ended jobs whose record this client has read; the rest is over these."""
    sampled_tokens: int
    total_tokens: int
    turns: int
    seconds: Mapping[str, float]
    """Seconds a stage and in all, summed; of the attempts that were kept."""


async def read_statistics(client: AsyncClient, keys: Keys, run: str, seen: SeenJobs) -> RunStatistics:
    """Asks Redis and adds what was seen.

    Raises:
        BrokerUnreachable: no contact.
    """
    found = texts(await ask(client, "HGETALL", keys.run(run)))
    waiting = 0
    for capability in {"none", *(name.decode() for name in await ask(client, "SMEMBERS", keys.key("classes")))}:
        waiting += int(await ask(client, "ZCARD", keys.queue(run, capability)))
    return RunStatistics(
        accepted=int(found.get("accepted", "0")),
        waiting=waiting,
        in_flight=int(found.get("inflight", "0")),
        outcomes=_counts(found, OUTCOME),
        groups=_counts(found, GROUPS),
        prompts=_counts(found, PROMPTS),
        epochs=_epochs(found),
        reserve=int(await ask(client, "ZCARD", keys.reserve(run))),
        groups_in_flight=int(await ask(client, "ZCARD", keys.flying(run))),
        steps_reached=int(found.get("steps.reached", "0")),
        tokens=tokens_by_fate(found),
        monitors=await read_monitors(client, keys, run, found),
        seen_jobs=seen.jobs,
        sampled_tokens=seen.sampled_tokens,
        total_tokens=seen.total_tokens,
        turns=seen.turns,
        seconds=dict(seen.seconds),
    )


def _counts(found: Mapping[str, str], prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): int(value) for name, value in found.items() if name.startswith(prefix)}


def _epochs(found: Mapping[str, str]) -> dict[int, EpochCount]:
    counts: dict[int, dict[str, int]] = {}
    for name, value in _counts(found, EPOCH).items():
        epoch, _, what = name.partition(".")
        counts.setdefault(int(epoch), {})[what] = value
    known = [field.name for field in fields(EpochCount)]
    return {epoch: EpochCount(**{what: count[what] for what in known if what in count}) for epoch, count in sorted(counts.items())}
