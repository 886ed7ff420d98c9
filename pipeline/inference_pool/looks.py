"""What keepers ask and say: which servers to look at, what they saw there, which calls they aborted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from pipeline.keys import Keys
from pipeline.redis_client import AsyncClient
from pipeline.scripts.replies import text
from pipeline.scripts.runner import ScriptRunner

LOOK_TAKES_MS = 8000
"""A look is leased this long: above the time that a server has to answer one."""
PERIOD_MS = 750
"""From a look to the next."""
ABORT_GIVEN_UP_MS = 600_000
"""A call that could not be aborted for this long is forgotten: its server is gone, or has long ended it."""
MAX_LOOKS = 64


@dataclass(frozen=True, slots=True)
class DueLook:
    """A server that this keeper is to look at, and no other for a while."""

    run: str
    url: str
    is_judged: bool
    """False: it left the run, or the run's engines are away. Only its calls are ended."""
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
    """The keepers' side of the pool."""

    def __init__(self, client: AsyncClient, namespace: str) -> None:
        self._script = ScriptRunner(client, Keys.of_pool(namespace))

    async def due(self, *, takes_ms: int = LOOK_TAKES_MS, period_ms: int = PERIOD_MS) -> list[DueLook]:
        """Takes the looks that are due; what ran out at those servers is swept."""
        rows = cast(Sequence[Sequence[object]], await self._script("pool_due", takes_ms, MAX_LOOKS, period_ms, ABORT_GIVEN_UP_MS))
        found = []
        for row in rows:
            run, url, is_judged, model, *ids = map(text, row)
            found.append(DueLook(run, url, is_judged == "1", model, tuple(ids)))
        return found

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
