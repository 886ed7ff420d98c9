"""How fast things go, from the samples that the janitor keeps. Pure; what cannot be told is None."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ops.status.facts import Facts
from pipeline.messages import Stage
from pipeline.samples import Sample

SHORTEST_MS = 30_000
"""Over less than this a rate would be chance."""
GROWTH_MS = 5 * 60_000
"""The same of memory and disk, which rise and fall with each step and each rewrite: a minute's growth says nothing of an hour."""
FORESEEN = 24
"""An end is foretold for so many times what was seen: 4.4 hours out of the eleven minutes that are kept; alerts look two hours ahead."""


def ended_lately(facts: Facts) -> int:
    """Jobs that ended within the samples' time, over all shards."""
    at = list(Stage).index(Stage.EVAL)
    return sum(max(0, shard[0].ended[at] - shard[-1].ended[at]) for shard in facts.samples if len(shard) > 1)


def jobs_a_second(facts: Facts, stage: Stage) -> float | None:
    """That a stage ends, over all shards."""
    at = list(Stage).index(stage)
    return _rate(facts.samples, lambda sample: sample.ended[at], all_shards=True)


def hours_until_full(facts: Facts) -> tuple[float | None, float | None]:
    """Of memory (the bound of the server) and of the disk with the append-only file.

    None = not known, it does not grow, or it is not full within `FORESEEN` times what the samples span.
    """
    server = facts.redis
    if server is None:
        return None, None
    memory_left = server.max_bytes - server.used_bytes if server.max_bytes else None
    return (
        hours_of(facts.samples, memory_left, lambda sample: sample.used_bytes),
        hours_of(facts.samples, server.disk_free_bytes, lambda sample: sample.aof_bytes),
    )


def hours_of(samples: Sequence[Sequence[Sample]], left: int | None, of: Callable[[Sample], int]) -> float | None:
    """Until something of the server that grows is used up, as `hours_until_full`.

    Args:
        samples: of each shard, newest first.
        left: bytes.
    """
    rate = _rate(samples, of, shortest_ms=GROWTH_MS)
    if left is None or not rate:
        return None
    left_s = max(0, left) / rate
    return left_s / 3600 if left_s * 1000 <= FORESEEN * max(shard[0].at_ms - shard[-1].at_ms for shard in samples if shard) else None


def _rate(
    samples: Sequence[Sequence[Sample]], of: Callable[[Sample], int], *, all_shards: bool = False, shortest_ms: int = SHORTEST_MS
) -> float | None:
    """Growth a second; each shard has the same server, so what is the server's is taken of one."""
    rates = []
    for shard in samples:
        if len(shard) > 1 and shard[0].at_ms - shard[-1].at_ms >= shortest_ms:
            rates.append((of(shard[0]) - of(shard[-1])) / ((shard[0].at_ms - shard[-1].at_ms) / 1000))
    if not rates:
        return None
    return max(0.0, sum(rates) if all_shards else rates[0])
