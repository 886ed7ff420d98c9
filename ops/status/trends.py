"""How fast things go, from the samples that the janitor keeps. Pure; what cannot be told is None."""

from __future__ import annotations

from collections.abc import Callable

from ops.status.facts import Facts
from pipeline.messages import Stage
from pipeline.samples import Sample

SHORTEST_MS = 30_000
"""Over less than this a rate would be chance."""


def ended_lately(facts: Facts) -> int:
    """Jobs that ended within the samples' time, over all shards."""
    at = list(Stage).index(Stage.EVAL)
    return sum(max(0, shard[0].ended[at] - shard[-1].ended[at]) for shard in facts.samples if len(shard) > 1)


def jobs_a_second(facts: Facts, stage: Stage) -> float | None:
    """That a stage ends, over all shards."""
    at = list(Stage).index(stage)
    return _rate(facts, lambda sample: sample.ended[at], all_shards=True)


def hours_until_full(facts: Facts) -> tuple[float | None, float | None]:
    """Of memory (the bound of the server) and of the disk with the append-only file; None = not known, or it does not grow."""
    server = facts.redis
    if server is None:
        return None, None
    memory = _rate(facts, lambda sample: sample.used_bytes)
    disk = _rate(facts, lambda sample: sample.aof_bytes)
    return (
        _hours(server.max_bytes - server.used_bytes if server.max_bytes else None, memory),
        _hours(server.disk_free_bytes, disk),
    )


def _rate(facts: Facts, of: Callable[[Sample], int], *, all_shards: bool = False) -> float | None:
    """Growth a second; each shard has the same server, so what is the server's is taken of one."""
    rates = []
    for shard in facts.samples:
        if len(shard) > 1 and shard[0].at_ms - shard[-1].at_ms >= SHORTEST_MS:
            rates.append((of(shard[0]) - of(shard[-1])) / ((shard[0].at_ms - shard[-1].at_ms) / 1000))
    if not rates:
        return None
    return max(0.0, sum(rates) if all_shards else rates[0])


def _hours(left: int | None, rate: float | None) -> float | None:
    return None if left is None or not rate else max(0, left) / rate / 3600
