"""The model server of a job: assigned by the pool in Redis, held for the life of the job, changed when it fails.

A `PooledBackend` is what the agent sees. Waiting for a server, or for the Redis that knows them, is progress (the lease of the job lives
on); every wait passes the gate, so a cancelled job does not wait. Assignments are leases, renewed here while their jobs run.

A server that failed is avoided by this whole process for a while, longer each time: it has lost its load and would be chosen next. One that
cannot be reached costs no try: that is no server, and no server is waited for.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

import redis
import structlog

from pipeline.engines.errors import InvalidResponse, ModelError, Retryable, RetryReason
from pipeline.errors import BrokerError, BrokerUnreachable
from pipeline.inference_pool import Assignment, InferencePool
from workers.llm.backend import Caps, GenRequest, GenResult
from workers.llm.connect import connect_backend
from workers.llm.gathered import Gathered
from workers.llm.http_backend import HttpBackend

log = structlog.get_logger(__name__)
Answer = TypeVar("Answer")

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 2.0
CALL_TRIES = 4
"""Tries of one model call over all servers, before the attempt fails."""
WAIT_PROGRESS_S = 60.0
PROBE_PROGRESS_S = 180.0
FIRST_SUSPICION_S, LONGEST_SUSPICION_S = 0.5, 30.0
SUSPICIOUS: frozenset[RetryReason] = frozenset(("unreachable", "closed", "engine_failed"))
"""What says that a server is not well; a busy or paused one is."""


Waiting = Callable[[], AbstractContextManager[None]]
"""Brackets a time that does not count as active."""


class ModelServers:
    """The model servers that this process calls.

    Args:
        api_key: sent to every server; empty = none.
        first_suspicion_s: for this long a server that failed is avoided at first.
    """

    def __init__(self, pool: InferencePool, *, lease_s: float, api_key: str = "", first_suspicion_s: float = FIRST_SUSPICION_S) -> None:
        self._pool = pool
        self._renew_s = lease_s / 4
        self._api_key = api_key
        self._first_suspicion_s = first_suspicion_s
        self._backends: dict[tuple[str, str], HttpBackend] = {}
        self._assigned: dict[str, Assignment] = {}
        self._suspects: dict[str, tuple[float, float]] = {}
        """By server: avoided until, by the monotonic clock, and for how long that was."""
        self._release: Gathered[Assignment] = Gathered(lambda assignments: self._pool.release(*assignments), "release assignments")
        self._stack = AsyncExitStack()
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._renewing = asyncio.create_task(self._renew(), name="assignments")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        await self._release.close()
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
        pin: int | None = None,
    ) -> PooledBackend:
        """The server of one attempt, assigned at its first call; with `pin` always the same one (`InferencePool.assign`)."""
        return PooledBackend(self, run, model, job, attempt, gate, progress, waiting, pin)

    async def assign(self, run: str, model: str, job: str, attempt: int, pin: int | None = None) -> Assignment | None:
        """Asks the pool; remembers the lease. None also while Redis is away: it is waited for like a server.

        A job that is pinned waits for a server that is avoided.
        """
        now_s = time.monotonic()
        avoid = [url for url, (until_s, _) in self._suspects.items() if now_s < until_s]
        try:
            assignment = await self._pool.assign(run, model, job, attempt, avoid=avoid, pin=pin)
        except BrokerUnreachable as error:
            log.warning("assignment_waits_for_redis", job_id=job, error=str(error))
            return None
        if assignment is not None:
            self._assigned[assignment.holder] = assignment
        return assignment

    def holds(self, assignment: Assignment) -> bool:
        """Whether its lease lives, as far as is known here: it ends when its server is drained or detached, too."""
        return self._assigned.get(assignment.holder) is assignment

    def suspect(self, url: str) -> None:
        """A server failed: it is avoided for a while."""
        now_s = time.monotonic()
        until_s, before_s = self._suspects.get(url, (0.0, 0.0))
        if now_s >= until_s:
            for_s = min(LONGEST_SUSPICION_S, max(self._first_suspicion_s, 2 * before_s))
            self._suspects[url] = (now_s + for_s, for_s)
            log.warning("model_server_suspected", server=url, avoided_for_s=for_s)

    def trust(self, url: str) -> None:
        """A server answered."""
        self._suspects.pop(url, None)

    async def release(self, assignment: Assignment) -> None:
        """Gives a lease back; an unreachable Redis lets it run out instead."""
        self._assigned.pop(assignment.holder, None)
        try:
            await self._release(assignment)
        except (BrokerError, redis.RedisError) as error:
            log.warning("assignment_not_released", server=assignment.server, error=str(error))

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
                    self._assigned.pop(assignment.holder)


class PooledBackend:
    """One job's way to a model server; the part of `Backend` that the agent uses."""

    def __init__(
        self,
        servers: ModelServers,
        run: str,
        model: str,
        job: str,
        attempt: int,
        gate: Callable[[], None],
        progress: Callable[[float], None],
        waiting: Waiting,
        pin: int | None = None,
    ) -> None:
        self._servers = servers
        self._pin = pin
        self._run, self._model, self._job, self._attempt = run, model, job, attempt
        self._gate = gate
        self._progress = progress
        self._waiting = waiting
        self._assignment: Assignment | None = None
        self._in_flight: set[str] = set()
        self.rerouted = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._assignment is not None:
            await self._servers.release(self._assignment)

    async def leave(self) -> None:
        """Ends what is in flight and gives the server back, over the head of whoever uses it."""
        answers = await asyncio.gather(*(self.abort(request_id) for request_id in [*self._in_flight]), return_exceptions=True)
        for error in filter(None, answers):
            log.warning("call_not_aborted", job_id=self._job, error=str(error))
        if self._assignment is not None:
            await self._servers.release(self._assignment)

    async def probe(self) -> Caps:
        """What the assigned server can do."""
        return await self._tried(lambda backend: backend.probe(), PROBE_PROGRESS_S)

    async def generate(self, request: GenRequest, *, timeout_s: float) -> GenResult:
        """One call; at another server, or the same one later, when a retry can help.

        Prefix caches are shared only within a run and a version of its weights: the salt keeps others out.
        """

        async def call(backend: HttpBackend) -> GenResult:
            version = self._assignment.version if self._assignment is not None else ""
            return await backend.generate(replace(request, cache_salt=f"{self._run}:{version}"), timeout_s=timeout_s)

        self._in_flight.add(request.request_id)
        try:
            return await self._tried(call, timeout_s + WAIT_PROGRESS_S)
        finally:
            self._in_flight.discard(request.request_id)

    async def abort(self, request_id: str) -> None:
        """Ends a call at the server it went to."""
        if self._assignment is not None:
            await (await self._servers.backend(self._assignment.server, self._model)).abort(request_id)

    async def _tried(self, call: Callable[[HttpBackend], Awaitable[Answer]], promised_s: float) -> Answer:
        left = CALL_TRIES
        while True:
            backend, assignment = await self._backend()
            self._gate()
            self._progress(promised_s)
            try:
                answer = await call(backend)
            except ModelError as error:
                reason = error.reason if isinstance(error, Retryable) else ""
                left -= reason != "unreachable"
                if reason in SUSPICIOUS or isinstance(error, InvalidResponse):
                    self._servers.suspect(assignment.server)
                if not error.retryable or left == 0:
                    raise
                log.warning("model_call_again", job_id=self._job, server=assignment.server, error=str(error), tries_left=left)
                await self._servers.release(assignment)
                self._assignment = None
                self.rerouted += 1
                asked_s = error.retry_after_s if isinstance(error, Retryable) else None
                with self._waiting():
                    await asyncio.sleep(min(LONGEST_WAIT_S, asked_s or FIRST_WAIT_S * 2 ** (CALL_TRIES - left)) * random.uniform(0.5, 1.0))
            else:
                self._servers.trust(assignment.server)
                return answer

    async def _backend(self) -> tuple[HttpBackend, Assignment]:
        wait_s = FIRST_WAIT_S
        if self._assignment is not None and not self._servers.holds(self._assignment):
            self._assignment = None
        while self._assignment is None:
            self._gate()
            self._progress(WAIT_PROGRESS_S)
            self._assignment = await self._servers.assign(self._run, self._model, self._job, self._attempt, self._pin)
            if self._assignment is None:
                with self._waiting():
                    await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
                wait_s = min(LONGEST_WAIT_S, wait_s * 2)
        return await self._servers.backend(self._assignment.server, self._model), self._assignment
