"""The model servers that this process calls: connections, leases, watchers. A job's own way to its server is a `PooledBackend`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import redis
import structlog

from pipeline.errors import BrokerError
from pipeline.inference_pool import AllowedLabels, Assignment, InferencePool, NoServer, Wanted
from pipeline.messages import Stage
from workers.llm.connect import connect_backend
from workers.llm.http_backend import HttpBackend
from workers.stages.measures import Measures, unread_measures
from workers.stages.pool_calls import PoolCalls
from workers.stages.pooled_backend import PooledBackend
from workers.stages.run_watch import SILENT_S, RunWatch, Waiting
from workers.stages.suspicion import FIRST_S, Suspicions

log = structlog.get_logger(__name__)


class ModelServers:
    """What the jobs of one process share. An async context manager.

    Args:
        api_key: sent to every server; empty = none.
        first_suspicion_s: for this long a server that failed is avoided at first.
        silent_s: calls in flight at a server that is down are given up after so long without an answered look.
        measures: count calls.
    """

    def __init__(
        self,
        pool: InferencePool,
        *,
        lease_s: float,
        api_key: str = "",
        first_suspicion_s: float = FIRST_S,
        silent_s: float = SILENT_S,
        measures: Measures | None = None,
    ) -> None:
        self.measures = measures or unread_measures(Stage.RUN)
        self._pool = pool
        self._renew_s = lease_s / 4
        self._api_key = api_key
        self._silent_s = silent_s
        self._backends: dict[tuple[str, str], HttpBackend] = {}
        self._assigned: dict[tuple[str, str], Assignment] = {}
        """By holder and server."""
        self._watches: dict[str, RunWatch] = {}
        self.suspicions = Suspicions(first_s=first_suspicion_s)
        self.calls = PoolCalls(pool, avoided=self.suspicions.avoided)
        self._stack = AsyncExitStack()
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.calls)
        self._renewing = asyncio.create_task(self._renew(), name="assignments")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        await self._stack.aclose()

    def for_job(
        self,
        run: str,
        model: str,
        job: str,
        attempt: int,
        *,
        gate: Callable[[], None],
        progress: Callable[[float], None],
        waiting: Waiting,
        group: str = "",
        pin: int | None = None,
    ) -> PooledBackend:
        """The way of one attempt, assigned at its first call.

        Args:
            gate: passed before each call and while waiting; raises when nothing new may begin.
            progress: promises a sign of life within so many seconds.
            group: whose members prefer one server.
            pin: it always has the same server (`Wanted.pin`).
        """
        wanted = Wanted(job=job, attempt=attempt, model=model, group=group, pin=pin)
        return PooledBackend(self, run, wanted, gate=gate, progress=progress, waiting=waiting)

    # ---- for the ways of jobs

    def join(self, run: str) -> RunWatch:
        """The watcher of a run, for as long as a job is here."""
        watch = self._watches.setdefault(run, RunWatch(self._pool, run, silent_s=self._silent_s))
        watch.join()
        return watch

    def leave(self, run: str) -> None:
        """A job that joined is gone."""
        if self._watches[run].leave():
            del self._watches[run]

    async def assign(self, run: str, wanted: Wanted) -> Assignment | NoServer:
        """Asks the pool; the lease lives until it is released.

        Raises:
            BrokerError
        """
        found = await self.calls.assign(run, wanted)
        if isinstance(found, Assignment):
            self._assigned[found.holder, found.server] = found
        return found

    def holds(self, assignment: Assignment) -> bool:
        """Whether its lease lives, as far as is known here."""
        return self._assigned.get((assignment.holder, assignment.server)) is assignment

    async def release(self, assignment: Assignment) -> None:
        """Gives a lease back; an unreachable Redis lets it run out instead."""
        self._assigned.pop((assignment.holder, assignment.server), None)
        try:
            await self.calls.release(assignment)
        except (BrokerError, redis.RedisError) as error:
            log.warning("assignment_not_released", server=assignment.server, error=str(error))

    async def report_refused(self, run: str, url: str, why: str) -> None:
        """Tells the pool of a server that could not be reached; it finds out by itself when this cannot be said."""
        try:
            await self._pool.report_refused(run, url, why)
        except (BrokerError, redis.RedisError) as error:
            log.warning("server_not_reported", server=url, error=str(error))

    async def report_label(self, run: str, url: str, label: str, began: AllowedLabels) -> None:
        """Tells the pool of a server that holds other weights than the run allows; the next look finds out when this cannot be said."""
        log.error("model_server_has_other_weights", run=run, server=url, label=label, allowed=began.highest)
        try:
            await self._pool.report_label(run, url, label, began)
        except (BrokerError, redis.RedisError) as error:
            log.warning("server_not_reported", server=url, error=str(error))

    async def backend(self, url: str, model: str) -> HttpBackend:
        """The client of one server, made when first needed."""
        key = (url, model)
        if key not in self._backends:
            backend = connect_backend(url, model=model, api_key=self._api_key)
            self._backends[key] = backend
            await self._stack.enter_async_context(backend)
        return self._backends[key]

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._renew_s)
            held = list(self._assigned.values())
            try:
                alive = await self._pool.renew(held) if held else []
            except (BrokerError, redis.RedisError) as error:
                log.warning("assignments_not_renewed", error=str(error))
                continue
            for assignment, lives in zip(held, alive, strict=True):
                if not lives and self.holds(assignment):
                    self._assigned.pop((assignment.holder, assignment.server))
