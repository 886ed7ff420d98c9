"""The limits of a RUN process at work: jobs come, wait for a place before a model call, call, and go; servers are looked at each second.

    async with limiter, limiter.job(run, model, job, group=..., since=...) as place:
        async with place.call(gate, waiting, progress):      # waits while it is held
            ...

Who acts is decided in `places.py`, how many may in `control.py`; here is what waits. A held job keeps all it has. It leaves the line at
once when it is cancelled, and looks at the gate while it stands there.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

import redis
import structlog

from pipeline.errors import BrokerError
from pipeline.inference_pool import PlacesOf, PoolPlaces, RunLoad
from workers.stages.concurrency.control import Change, ConcurrencyLimit, Everybody, ServerLoad
from workers.stages.concurrency.places import Places

log = structlog.get_logger(__name__)
Answer = TypeVar("Answer")

PERIOD_S = 1.0
"""As often as keepers look at servers."""
GATE_S = 1.0
"""A held job passes the gate so often."""
HELD_PROGRESS_S = 60.0
STRANGER_S = 2.0
"""As often a process whose known runs have no room claims a job all the same, while it has slots: it may be of a run that is new here."""
REMEMBERED_S = 60.0
"""What was learned of a (run, model) is kept this long after its last job here."""
CALL_S, CALL_WEIGHT = 10.0, 0.1
"""How long a call takes, as believed before the first one, and the weight of each further one."""


@dataclass(slots=True, eq=False)
class _Pool:
    """One (run, model)."""

    run: str
    model: str
    limit: ConcurrencyLimit
    places: Places[JobPlace]
    call_s: float = CALL_S
    idle_since_s: float = 0.0
    had_news: bool = True

    @property
    def said(self) -> PlacesOf:
        return PlacesOf(limit=self.places.limit, bound=self.limit.high, acting=self.places.acting, held=self.places.held)


class Limiter:
    """The limits of one RUN process.

    Args:
        pool: where limits are said and loads are heard.
        who: name of this process.
        low: bound of each limit from below.
        high: bound from above, and of all jobs of this process.
        on_room: told when more jobs may be claimed than before.
    """

    def __init__(
        self,
        pool: PoolPlaces,
        *,
        who: str,
        low: int,
        high: int,
        on_room: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
        period_s: float = PERIOD_S,
    ) -> None:
        self.on_room = on_room
        self._pool = pool
        self._who = who
        self._low, self._high = low, high
        self._monotonic = monotonic
        self._period_s = period_s
        self._pools: dict[tuple[str, str], _Pool] = {}
        self._no_room_since_s = math.inf
        """Or since the last job that came without room."""
        self._came = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._look_again_and_again(), name="concurrency")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        with contextlib.suppress(BrokerError, redis.RedisError):  # what it said lapses by itself
            for pool in self._pools.values():
                await self._pool.leave(pool.run, pool.model, self._who)

    def allowed_jobs(self) -> int:
        """How many jobs this process may hold, those that it holds included: what each known (run, model) has room for.

        A stream cannot be asked for the jobs of one run, so as long as one has room, jobs of another may come beyond theirs, and are held.
        Nor does it say which runs have jobs there: where none has room one more may come now and then, else a run that is new here would
        wait for all that the others have here.
        """
        if not self._pools:
            return self._high
        held = sum(len(pool.places) for pool in self._pools.values())
        room = sum(max(0, pool.places.limit - len(pool.places)) for pool in self._pools.values())
        if room:
            self._no_room_since_s = math.inf
            return held + room
        now_s = self._monotonic()
        self._no_room_since_s = min(self._no_room_since_s, now_s)
        return held + (now_s - self._no_room_since_s >= STRANGER_S)

    def standing(self, run: str, model: str = "") -> PlacesOf | None:
        """How it stands with a (run, model) here; None when it is not known."""
        pool = self._pools.get((run, model))
        return None if pool is None else pool.said

    def hears(self, run: str, model: str = "") -> bool:
        """Whether the last look at a (run, model) was answered."""
        pool = self._pools.get((run, model))
        return pool is not None and pool.had_news

    @contextmanager
    def job(self, run: str, model: str, job: str, *, group: str, since: float) -> Iterator[JobPlace]:
        """A job that acts here, from its first to its last call.

        Args:
            group: empty = none.
            since: when it was queued, seconds by any clock that all jobs of the run share.
        """
        if (run, model) not in self._pools:
            limit = ConcurrencyLimit(self._low, self._high)
            self._pools[run, model] = _Pool(run, model, limit, Places(limit.places))
            self._came.set()
        self._no_room_since_s = math.inf
        place = JobPlace(self, self._pools[run, model], job)
        place.pool.places.come(place, group, since)
        try:
            yield place
        finally:
            self.leave(place)

    def leave(self, place: JobPlace) -> None:
        """A job is gone; does nothing the second time."""
        self._wake(place.pool.places.go(place))
        place.pool.idle_since_s = self._monotonic()

    # ---- looks

    async def _look_again_and_again(self) -> None:
        while True:
            self._came.clear()
            for key, pool in [*self._pools.items()]:
                if not len(pool.places) and self._monotonic() - pool.idle_since_s > REMEMBERED_S:
                    del self._pools[key]
                    self.on_room()
                    await self._ask(pool, self._pool.leave(pool.run, pool.model, self._who))
                else:
                    load = await self._ask(pool, self._pool.say(pool.run, pool.model, self._who, pool.said))
                    pool.had_news = load is not None
                    self.take_look(pool.run, pool.model, load)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period_s if self._pools else None):
                    await self._came.wait()

    async def _ask(self, pool: _Pool, question: Awaitable[Answer]) -> Answer | None:
        """The answer; None when there was none, which is told once."""
        try:
            return await question
        except (BrokerError, redis.RedisError, ValueError) as error:
            # ValueError: what stands in a server's hash is no number
            if pool.had_news:
                log.warning("places_without_news", run=pool.run, model=pool.model, limit=pool.places.limit, error=str(error))
            return None

    def take_look(self, run: str, model: str, load: RunLoad | None) -> Change | None:
        """Takes what was heard of a (run, model) into account; None = nothing was."""
        pool = self._pools[run, model]
        loads = _loads(load) if load is not None else ()
        change = pool.limit.look(
            self._monotonic(),
            loads,
            used=pool.places.acting,
            call_s=pool.call_s,
            everybody=Everybody(load.limits, load.bounds) if load is not None else None,
            is_paused=load is not None and load.is_paused,
        )
        if change is not None:
            self._wake(pool.places.set_limit(change.after))
            log.info(
                "places_changed",
                run=run,
                model=model,
                before=change.before,
                after=change.after,
                cause=change.cause,
                acting=pool.places.acting,
                held=pool.places.held,
                waiting_calls=sum(seen.waiting for seen in loads),
                running_calls=sum(seen.running for seen in loads),
                kv_used=round(max((seen.kv for seen in loads), default=-1.0), 2),
            )
            if change.after > change.before:
                self.on_room()
        return change

    @staticmethod
    def _wake(granted: Sequence[JobPlace]) -> None:
        for place in granted:
            place.granted.set()


@dataclass(slots=True, eq=False)
class JobPlace:
    """One job before the model."""

    limiter: Limiter
    pool: _Pool
    name: str
    granted: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def call(
        self,
        gate: Callable[[], None],
        waiting: Callable[[], AbstractContextManager[None]],
        progress: Callable[[float], None],
    ) -> AsyncIterator[None]:
        """Brackets a model call; waits for a place before it.

        Args:
            gate: passed while it waits.
            waiting: brackets the time that it waits.
            progress: told that it waits.
        """
        places = self.pool.places
        while not places.want(self):
            self.granted.clear()
            try:
                with waiting():
                    gate()
                    progress(HELD_PROGRESS_S)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(GATE_S):
                            await self.granted.wait()
            finally:
                places.give_up(self)
        try:
            yield
        finally:
            places.called(self)

    def took(self, call_s: float) -> None:
        """A call was answered after so long."""
        self.pool.call_s += CALL_WEIGHT * (call_s - self.pool.call_s)

    async def leave(self) -> None:
        """Gives the place up, over the head of whoever uses it."""
        self.limiter.leave(self)


def _loads(load: RunLoad) -> list[ServerLoad]:
    return [
        ServerLoad(
            server=seen.url,
            running=seen.running,
            waiting=seen.waiting,
            kv=seen.kv_used,
            age_s=seen.age_ms / 1000 if seen.age_ms >= 0 else math.inf,
        )
        for seen in load.servers
    ]
