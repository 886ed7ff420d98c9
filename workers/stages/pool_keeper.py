"""Looks after the inference servers of all runs: every RUN worker has one, and of all of them one looks at each server about once a second.

Protocol: Redis says which looks are due and leases them to this keeper (`pool_due`). That sweeps assignments that ran out, too, and names
the calls of theirs that may still run at the server. The keeper asks the server how it is, ends those calls there, and says both
(`pool_looked`, `pool_aborted`).

Invariants:
  1. What a keeper saw is only ever said of the server that it looked at, and what follows from it is decided in Redis.
  2. A call is taken off the list of aborts only after its server took the abort: a keeper that dies loses none. An abort of what has ended
     changes nothing.
  3. An engine that is paused though its run is not goes on only when its label is one that the run allows (ADR 13): the pool says so.
  4. A server that does not answer keeps nobody waiting: each look has its own task and its own time.
  5. Nothing that a server answers ends the keeper, and with it the worker: the next keeper would look there, and end, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import redis
import structlog

from pipeline.engines.control import EngineControl, Health
from pipeline.engines.errors import ModelError
from pipeline.errors import BrokerError
from pipeline.inference_pool import DueLook, PoolLooks, Seen
from pipeline.inference_pool.looks import PERIOD_MS
from pipeline.inference_pool.pool import MOST_WHY

log = structlog.get_logger(__name__)

PERIOD_S, ROUND_S = PERIOD_MS / 1000, 0.25
"""From a look at a server to the next, and from one question for due looks to the next: together at most a second."""
ABORTS_TAKE_S = 5.0
OUTAGE_PAUSE_S = 1.0


class KeptServer(Protocol):
    """What a keeper needs of a server."""

    @property
    def control(self) -> EngineControl: ...

    async def abort(self, request_id: str) -> None: ...


class PoolKeeper:
    """The keeper of one process.

    Args:
        server: the client of a server, by address and model.
        period_s: from a look at a server to the next.
    """

    def __init__(
        self, looks: PoolLooks, server: Callable[[str, str], Awaitable[KeptServer]], *, period_s: float = PERIOD_S, round_s: float = ROUND_S
    ) -> None:
        self._looks = looks
        self._server = server
        self._period_ms = int(period_s * 1000)
        self._round_s = round_s

    async def run(self, stop: asyncio.Event) -> None:
        """Looks until `stop` is set."""
        looking: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as tasks:
            while not stop.is_set():
                pause_s = self._round_s
                try:
                    due = await self._looks.due(period_ms=self._period_ms)
                except (BrokerError, redis.RedisError) as error:
                    log.warning("looks_not_asked", error=str(error))
                    due, pause_s = [], OUTAGE_PAUSE_S
                for look in due:
                    task = tasks.create_task(self._look(look), name=f"look at {look.url}")
                    looking.add(task)
                    task.add_done_callback(looking.discard)
                try:
                    async with asyncio.timeout(pause_s):
                        await stop.wait()
                except TimeoutError:
                    continue
            for task in looking:  # their leases end, and others look
                task.cancel()

    async def _look(self, look: DueLook) -> None:
        try:
            server = await self._server(look.url, look.model)
            await asyncio.gather(self._abort(look, server), self._see(look, server))
        except (BrokerError, redis.RedisError) as error:
            log.warning("look_not_said", server=look.url, error=str(error))  # its lease ends, and another keeper looks
        except Exception:
            log.exception("look_failed", run=look.run, server=look.url)

    async def _abort(self, look: DueLook, server: KeptServer) -> None:
        if not look.to_abort:
            return
        try:
            async with asyncio.timeout(ABORTS_TAKE_S):
                await asyncio.gather(*(server.abort(call) for call in look.to_abort))
        except (TimeoutError, ModelError) as error:
            log.warning("calls_not_aborted", run=look.run, server=look.url, calls=len(look.to_abort), error=str(error)[:MOST_WHY])
            return
        await self._looks.aborted(look, period_ms=self._period_ms)
        log.info("calls_aborted", run=look.run, server=look.url, calls=len(look.to_abort), why="their process is gone, or they are frozen")

    async def _see(self, look: DueLook, server: KeptServer) -> None:
        if not look.is_judged:
            return
        try:
            health = await server.control.health()
        except Exception as error:  # whatever an answer does to those who read it: this server cannot be used
            log.exception("look_not_understood", run=look.run, server=look.url)
            health = Health(alive=False, detail=f"its answer cannot be read: {type(error).__name__}: {error}")
        seen = Seen(
            alive=health.alive,
            why=health.detail[:MOST_WHY],
            label=health.version,
            paused=health.paused if health.tells_pause else None,
            started=health.started,
            running=health.running,
            waiting=health.waiting,
            kv_used=health.kv_used if health.kv_used <= 1 else -1.0,  # no share, so who knows
            kind=health.kind,
        )
        looked = await self._looks.looked(look, seen, period_ms=self._period_ms)
        if looked.was != looked.now:
            level = log.info if looked.now == "up" else log.warning
            level("model_server", run=look.run, server=look.url, was=looked.was, now=looked.now, label=seen.label, why=seen.why)
        if looked.resume:
            await self._resume(look, server, seen)

    async def _resume(self, look: DueLook, server: KeptServer, seen: Seen) -> None:
        try:
            await server.control.resume()
        except ModelError as error:
            log.warning("server_not_resumed", run=look.run, server=look.url, error=str(error)[:MOST_WHY])
            return
        if seen.paused is None:
            await self._looks.looked(look, seen, period_ms=self._period_ms, went_on=True)
            log.info("server_told_to_go_on", run=look.run, server=look.url, why="it does not say whether an update left it paused")
            return
        log.warning(
            "server_resumed", run=look.run, server=look.url, why="an update that nobody holds had paused it, and its label is the run's"
        )
