"""What keepers ask and say: which servers to look at, what they saw there, which calls they aborted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from pipeline.errors import BrokerMisused
from pipeline.keys import Keys, shard_of
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.replies import text
from pipeline.scripts.runner import ScriptRunner

LOOK_TAKES_MS = 8000
"""A look is leased this long: above the time that a server has to answer one."""
PERIOD_MS = 750
"""From a look to the next."""
ABORT_GIVEN_UP_MS = 600_000
"""A call that could not be aborted for this long is forgotten: its server is gone, or has long ended it."""
MAX_LOOKS = 64
OPEN_FOR_S = 5.0
"""A run that was open is asked for again after that."""


@dataclass(frozen=True, slots=True)
class DueLook:
    """A server that this keeper is to look at, and no other for a while."""

    run: str
    url: str
    is_judged: bool
    """False: it left the run, the run is over, or its engines are away. Only its calls are ended."""
    model: str
    to_abort: tuple[str, ...]
    """Ids of calls whose process is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a look found."""

    alive: bool
    why: str = ""
    label: str = ""
    paused: bool | None = False
    """None = it does not say."""
    started: str = ""
    running: int = 0
    waiting: int = 0
    kv_used: float = -1.0
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Looked:
    """What a look changed."""

    was: str
    now: str
    """`up`, `down`, `unsynced` or `gone`."""
    resume: bool
    """The engine is paused though its run is not, and its weights are proven: it is to go on."""


class PoolLooks:
    """The keepers' side of the pool.

    Args:
        shards: over which the runs of the namespace are spread.
    """

    def __init__(self, client: AsyncClient, namespace: str, *, shards: int = 1) -> None:
        self._client = client
        self._namespace = namespace
        self._shards = shards
        self._script = ScriptRunner(client, Keys.of_pool(namespace))
        self._open_until_s: dict[str, float] = {}
        """By the monotonic clock."""

    async def due(self, *, takes_ms: int = LOOK_TAKES_MS, period_ms: int = PERIOD_MS) -> list[DueLook]:
        """Takes the looks that are due; what ran out at those servers is swept.

        Servers of a run that was closed are not looked at: nobody calls them, and what is said of them stands for a week. Their turn comes
        again when the look's lease ends, so a trainer that connects anew finds them looked at by then.
        """
        rows = cast(Sequence[Sequence[object]], await self._script("pool_due", takes_ms, MAX_LOOKS, period_ms, ABORT_GIVEN_UP_MS))
        found, over = [], await self._over({text(row[0]) for row in rows})
        for row in rows:
            run, url, is_judged, model, *ids = map(text, row)
            found.append(DueLook(run, url, is_judged == "1" and run not in over, model, tuple(ids)))
        return found

    async def _over(self, runs: set[str]) -> set[str]:
        """Those that were closed. One of which the queue knows nothing has its trainer to come."""
        now_s = time.monotonic()
        self._open_until_s = {run: until_s for run, until_s in self._open_until_s.items() if until_s > now_s}
        asked = [run for run in runs if run not in self._open_until_s]
        closed = await asyncio.gather(*map(self._is_closed, asked))
        over = {run for run, is_closed in zip(asked, closed, strict=True) if is_closed}
        self._open_until_s.update(dict.fromkeys(set(asked) - over, now_s + OPEN_FOR_S))
        return over

    async def _is_closed(self, run: str) -> bool:
        key = Keys.of_shard(self._namespace, shard_of(run, self._shards)).run(run)
        try:
            return bool(await ask(self._client, "HGET", key, "st") == b"closed")
        except BrokerMisused:  # something else stands there: that run's trouble, which keeps no server of another from being looked at
            return False

    async def looked(self, look: DueLook, seen: Seen, *, period_ms: int = PERIOD_MS, went_on: bool = False) -> Looked:
        """Says what was seen; the next look comes a period later.

        Args:
            went_on: the engine was just told to go on, which one that does not say that it is paused shows nowhere.
        """
        was, now, act = await self._script(
            "pool_looked",
            look.run,
            look.url,
            period_ms,
            int(seen.alive),
            seen.why,
            seen.label,
            "" if seen.paused is None else int(seen.paused),
            seen.started,
            seen.running,
            seen.waiting,
            seen.kv_used,
            seen.kind,
            int(went_on),
        )
        return Looked(text(was), text(now), act == b"resume")

    async def aborted(self, look: DueLook, *, period_ms: int = PERIOD_MS) -> None:
        """The server took the aborts."""
        if look.to_abort:
            await self._script("pool_aborted", look.run, look.url, period_ms, *look.to_abort)
