"""The model server of a job: assigned by the pool in Redis, held for the life of the job, changed when it fails.

A `PooledBackend` is what the agent sees. Waiting for a server is progress (the lease of the job lives on); every wait passes the gate, so a
cancelled job does not wait. Assignments are leases, renewed here while their jobs run.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

import structlog

from pipeline.errors import BrokerError
from pipeline.inference_pool import Assignment, InferencePool
from workers.llm.backend import Caps, GenRequest, GenResult
from workers.llm.errors import ModelError, Retryable
from workers.llm.vllm import VllmBackend

log = structlog.get_logger(__name__)
Answer = TypeVar("Answer")

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 2.0
CALL_TRIES = 4
"""Tries of one model call over all servers, before the attempt fails."""
WAIT_PROGRESS_S = 60.0


Waiting = Callable[[], AbstractContextManager[None]]
"""Brackets a time that does not count as active."""


class ModelServers:
    """The model servers that this process calls.

    Args:
        api_key: sent to every server; empty = none.
    """

    def __init__(self, pool: InferencePool, *, lease_s: float, api_key: str = "") -> None:
        self._pool = pool
        self._renew_s = lease_s / 4
        self._api_key = api_key
        self._backends: dict[tuple[str, str], VllmBackend] = {}
        self._assigned: dict[str, Assignment] = {}
        self._stack = AsyncExitStack()
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._renewing = asyncio.create_task(self._renew(), name="assignments")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        await self._stack.aclose()

    def for_job(
        self, run: str, model: str, job: str, attempt: int, *, gate: Callable[[], None], progress: Callable[[float], None], waiting: Waiting
    ) -> PooledBackend:
        """The server of one attempt, assigned at its first call."""
        return PooledBackend(self, run, model, job, attempt, gate, progress, waiting)

    async def assign(self, run: str, model: str, job: str, attempt: int) -> Assignment | None:
        """Asks the pool; remembers the lease."""
        assignment = await self._pool.assign(run, model, job, attempt)
        if assignment is not None:
            self._assigned[assignment.holder] = assignment
        return assignment

    async def release(self, assignment: Assignment) -> None:
        """Gives a lease back; an unreachable Redis lets it run out instead."""
        self._assigned.pop(assignment.holder, None)
        try:
            await self._pool.release(assignment)
        except BrokerError as error:
            log.warning("assignment_not_released", server=assignment.server, error=str(error))

    async def backend(self, url: str, model: str) -> VllmBackend:
        """The client of one server, made when first needed."""
        key = (url, model)
        if key not in self._backends:
            backend = VllmBackend(url, model=model, api_key=self._api_key)
            self._backends[key] = backend
            await self._stack.enter_async_context(backend)
        return self._backends[key]

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._renew_s)
            held = list(self._assigned.values())
            try:
                alive = await self._pool.renew(held) if held else []
            except BrokerError as error:
                log.warning("assignments_not_renewed", error=str(error))
                continue
            for assignment, lives in zip(held, alive, strict=True):
                if not lives:
                    self._assigned.pop(assignment.holder, None)


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
    ) -> None:
        self._servers = servers
        self._run, self._model, self._job, self._attempt = run, model, job, attempt
        self._gate = gate
        self._progress = progress
        self._waiting = waiting
        self._assignment: Assignment | None = None
        self.rerouted = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._assignment is not None:
            await self._servers.release(self._assignment)

    async def probe(self) -> Caps:
        """What the assigned server can do."""
        return await self._tried(lambda backend: backend.probe())

    async def generate(self, request: GenRequest, *, timeout_s: float) -> GenResult:
        """One call; at another server, or the same one later, when a retry can help.

        Prefix caches are shared only within a run and a version of its weights: the salt keeps others out.
        """
        self._progress(timeout_s * CALL_TRIES + WAIT_PROGRESS_S)

        async def call(backend: VllmBackend) -> GenResult:
            version = self._assignment.version if self._assignment is not None else ""
            return await backend.generate(replace(request, cache_salt=f"{self._run}:{version}"), timeout_s=timeout_s)

        return await self._tried(call)

    async def abort(self, request_id: str) -> None:
        """Ends a call at the server it went to."""
        if self._assignment is not None:
            await (await self._servers.backend(self._assignment.server, self._model)).abort(request_id)

    async def _tried(self, call: Callable[[VllmBackend], Awaitable[Answer]]) -> Answer:
        for left in range(CALL_TRIES - 1, -1, -1):
            backend = await self._backend()
            self._gate()
            try:
                return await call(backend)
            except ModelError as error:
                if not error.retryable or left == 0 or self._assignment is None:
                    raise
                log.warning("model_call_again", job_id=self._job, server=self._assignment.server, error=str(error), tries_left=left)
                pause_s = (
                    error.retry_after_s if isinstance(error, Retryable) and error.retry_after_s else FIRST_WAIT_S * 2 ** (CALL_TRIES - left)
                )
                await self._servers.release(self._assignment)
                self._assignment = None
                self.rerouted += 1
                with self._waiting():
                    await asyncio.sleep(min(LONGEST_WAIT_S, pause_s) * random.uniform(0.5, 1.0))
        raise AssertionError("the last try returns or raises")

    async def _backend(self) -> VllmBackend:
        wait_s = FIRST_WAIT_S
        while self._assignment is None:
            self._gate()
            self._progress(WAIT_PROGRESS_S)
            self._assignment = await self._servers.assign(self._run, self._model, self._job, self._attempt)
            if self._assignment is None:
                with self._waiting():
                    await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
                wait_s = min(LONGEST_WAIT_S, wait_s * 2)
        return await self._servers.backend(self._assignment.server, self._model)
