"""What RUN processes say of their limits, and hear of the servers, once a second each (docs/adr/0015-adaptive-concurrency.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.replies import text, whole
from pipeline.scripts.runner import ScriptRunner

STANDS_MS = 10_000
"""What a process says stands for so long: ten looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesOf:
    """How many jobs of a (run, model) may act in one process."""

    limit: int
    bound: int
    """What ops allow."""
    acting: int
    held: int


@dataclass(frozen=True, slots=True)
class SeenLoad:
    """What the last look at a usable server saw."""

    url: str
    running: int
    waiting: int
    kv_used: float
    """Share of the KV cache; -1 = it does not say."""
    age_ms: int
    """Since it answered a look; -1 = it never did."""


@dataclass(frozen=True, slots=True)
class RunLoad:
    """What a process hears of a (run, model)."""

    is_paused: bool
    limits: int
    """Sum over all processes, the asking one included."""
    bounds: int
    servers: tuple[SeenLoad, ...]
    """Those that take new jobs; also without one whose engine is paused."""


class PoolPlaces:
    """The script on the pool."""

    def __init__(self, client: AsyncClient, namespace: str) -> None:
        self._script = ScriptRunner(client, Keys.of_pool(namespace))

    async def say(self, run: str, model: str, who: str, said: PlacesOf, *, stands_ms: int = STANDS_MS) -> RunLoad:
        """Says how it stands here, and hears how it stands elsewhere. Tried once: what cannot be heard now is heard at the next look.

        Raises:
            BrokerError
        """
        reply = await self._script("pool_places", run, model, who, stands_ms, said.limit, said.bound, said.acting, said.held, tries=1)
        paused, limits, bounds, *words = reply
        rows = zip(*(words[at::5] for at in range(5)), strict=True)
        return RunLoad(
            paused == 1,
            whole(limits),
            whole(bounds),
            tuple(SeenLoad(text(url), whole(r), whole(w), float(text(kv)), whole(age)) for url, r, w, kv, age in rows),
        )

    async def leave(self, run: str, model: str, who: str) -> None:
        """Nothing of this (run, model) is here any more.

        Raises:
            BrokerError
        """
        await self._script("pool_places", run, model, who, STANDS_MS, 0, 0, 0, 0, tries=1)


async def read_places(client: AsyncClient, keys: Keys, run: str, now_ms: int) -> dict[str, PlacesOf]:
    """What all processes say of a run: by `<process> <model>`. Plain commands, for people who may only read.

    Args:
        keys: of the pool.
        now_ms: by the clock of Redis.
    """
    found = {}
    for who, said in cast(dict[bytes, bytes], await ask(client, "HGETALL", keys.pool_places(run))).items():
        limit, bound, acting, held, until_ms = map(int, said.split())
        if until_ms > now_ms:
            found[who.decode()] = PlacesOf(limit=limit, bound=bound, acting=acting, held=held)
    return found
