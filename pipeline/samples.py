"""What rates are told from: a line a minute of how much memory and disk Redis uses and how many jobs each stage has ended.

The janitor that does the rounds keeps it, one list a shard, the newest first, so that a single look can say how fast things go. A line
that is lost, doubled or late changes a rate a little and nothing else: nothing decides on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.keys import Keys, run_ids
from pipeline.messages import Stage
from pipeline.redis_client import AsyncClient, ask, redis_now_ms

EVERY_MS = 60_000
KEPT = 12
"""Minutes that a rate is told over: long enough for jobs of some minutes, short enough to notice that they have stopped."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One shard at one moment."""

    at_ms: int
    used_bytes: int
    """Memory."""
    aof_bytes: int
    """The append-only file; 0 = there is none."""
    ended: tuple[int, ...]
    """Jobs that left each stage for good since the key was made: INIT, RUN, EVAL. Falls when a run is forgotten."""

    def line(self) -> str:
        """As it is kept."""
        return " ".join(map(str, (self.at_ms, self.used_bytes, self.aof_bytes, *self.ended)))


def parse_sample(line: bytes) -> Sample | None:
    """A kept line; None when it is none."""
    words = line.split()
    if len(words) < 3 + len(Stage) or not all(word.isdigit() for word in words):
        return None
    at_ms, used, aof, *ended = map(int, words)
    return Sample(at_ms, used, aof, tuple(ended[: len(Stage)]))


async def take_sample(client: AsyncClient, keys: Keys) -> Sample:
    """How a shard stands now.

    Raises:
        BrokerError: Redis does not answer, or not to this user.
    """
    memory, persistence = await ask(client, "INFO", "memory"), await ask(client, "INFO", "persistence")
    settled = 0
    for run in run_ids(await ask(client, "ZRANGE", keys.runs, 0, -1)):
        fields = await ask(client, "HGETALL", keys.run(run))
        settled += sum(int(value) for name, value in fields.items() if name.startswith(b"out.") and value.isdigit())
    ended = [await handed_to(client, keys, Stage.RUN), await handed_to(client, keys, Stage.EVAL), settled]
    return Sample(await redis_now_ms(client), int(memory["used_memory"]), int(persistence.get("aof_current_size", 0)), tuple(ended))


async def keep_sample(client: AsyncClient, keys: Keys) -> bool:
    """Keeps a line when the last one is a minute old; True when it did."""
    newest = await ask(client, "LINDEX", keys.samples, 0)
    last = parse_sample(newest) if newest else None
    if last is not None and 0 <= await redis_now_ms(client) - last.at_ms < EVERY_MS:
        return False
    await ask(client, "LPUSH", keys.samples, (await take_sample(client, keys)).line())
    await ask(client, "LTRIM", keys.samples, 0, KEPT - 1)
    return True


async def read_samples(client: AsyncClient, keys: Keys) -> list[Sample]:
    """The kept lines, the newest first."""
    lines = await ask(client, "LRANGE", keys.samples, 0, KEPT - 1)
    return [sample for sample in map(parse_sample, lines) if sample is not None]


async def handed_to(client: AsyncClient, keys: Keys, stage: Stage) -> int:
    """Entries that the streams of a stage ever had, those that were put back included; lanes that were deleted are forgotten."""
    total = 0
    for short in {b"s:" + stage.value.encode(), *await ask(client, "SMEMBERS", keys.key("streams"))}:
        if short.split(b":")[1] != stage.value.encode():
            continue
        if await ask(client, "EXISTS", keys.key(short.decode())):
            total += int((await ask(client, "XINFO STREAM", keys.key(short.decode()))).get("entries-added", 0))
    return total
