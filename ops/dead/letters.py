"""Dead letters, read: jobs that no retry could help, the newest first. Fields are in docs/reference/streams.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from pipeline.errors import RollstreamError
from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.settings import QueueSettings
from pipeline.supervisor.run_account import texts
from pipeline.together import together

LOST = re.compile(r"lost (\d+) times")
MOST_LOOKED_AT = 100_000
"""The stream is trimmed to about as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One line of `s:dead`."""

    shard: int
    entry: str
    job: str
    """Empty = an entry that no worker could read."""
    run: str
    group: str
    stage: str
    attempt: int
    failed: int
    lost: int
    why: str
    raw: str
    """Of an entry that no worker could read: what it held."""

    @property
    def at_ms(self) -> int:
        """When it died, by the clock of Redis."""
        return int(self.entry.split("-")[0])

    @property
    def kind(self) -> str:
        """`<boundary>: <class>` of a failure, `lost` of a job whose workers died, else the reason."""
        if LOST.match(self.why):
            return "lost"
        parts = self.why.split(": ", 2)
        return ": ".join(parts[:2]) if len(parts) == 3 else self.why


async def read_dead_letters(client: AsyncClient, settings: QueueSettings, *, most: int, since_ms: int = 0) -> list[DeadLetter]:
    """The newest of all shards, newest first.

    Args:
        most: of each shard.
        since_ms: none that died earlier.

    Raises:
        BrokerError: Redis does not answer, or not to this user.
    """
    shards = await together(*(_of_shard(client, settings, shard, most, since_ms) for shard in range(settings.shards)))
    return sorted(chain(*shards), key=lambda letter: letter.at_ms, reverse=True)


async def _of_shard(client: AsyncClient, settings: QueueSettings, shard: int, most: int, since_ms: int) -> Sequence[DeadLetter]:
    keys = Keys.of_shard(settings.namespace, shard)
    found = await ask(client, "XREVRANGE", keys.dead, "+", str(since_ms) if since_ms else "-", "COUNT", most)
    return [_letter(shard, entry.decode(), texts(fields)) for entry, fields in found]


def _letter(shard: int, entry: str, fields: dict[str, str]) -> DeadLetter:
    return DeadLetter(
        shard=shard,
        entry=entry,
        job=fields.get("job", ""),
        run=fields.get("run", ""),
        group=fields.get("grp", ""),
        stage=fields.get("stage", ""),
        attempt=int(fields.get("att") or 0),
        failed=int(fields.get("failed") or 0),
        lost=int(fields.get("lost") or 0),
        why=fields.get("why", ""),
        raw=fields.get("raw", ""),
    )


class NoDeadLetter(RollstreamError):
    """No letter of that job or entry."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no dead letter of {name!r}: rollstream dead list names those that are there, rollstream job show JOB any job")


async def letter_of(client: AsyncClient, settings: QueueSettings, name: str) -> DeadLetter:
    """The newest letter of a job, or the one with that entry.

    Raises:
        NoDeadLetter
        BrokerError: as above.
    """
    for letter in await read_dead_letters(client, settings, most=MOST_LOOKED_AT):
        if name in (letter.job, letter.entry):
            return letter
    raise NoDeadLetter(name)


async def drop_letters(client: AsyncClient, settings: QueueSettings, letters: Sequence[DeadLetter]) -> int:
    """Takes letters off the list; how many were still there."""
    dropped = 0
    for letter in letters:
        dropped += int(await ask(client, "XDEL", Keys.of_shard(settings.namespace, letter.shard).dead, letter.entry))
    return dropped
