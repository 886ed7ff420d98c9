"""A server's place among those of a run: taken when it serves, given up in two steps.

    attach -> ... -> drain: no new jobs, until it has none -> detach: no new calls, until none is in flight -> the server may end

Invariants:

- Detached is what was attached, whatever happens between, as far as Redis can be reached. Without it the place is given up by whoever drops
  it (`rollstream llm drop`); workers take a server that does not answer for down meanwhile.
- Leaving takes at most the time it is given. Jobs that are not done go on elsewhere with their next call.
- The label of a server that nobody labelled names its run and this start of it: no two starts have one, so none is taken for another.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

import redis
import structlog

from pipeline.errors import BrokerError
from pipeline.inference_pool import InferencePool, Server
from pipeline.process import until_reached

log = structlog.get_logger(__name__)

JOBS_SHARE = 0.6
"""Of the time of a drain, for jobs that may still end here; the rest is for calls in flight."""
LOOK_S = 0.25
Reply = TypeVar("Reply")


def start_label(run: str) -> str:
    """For weights as they come from the model's folder. A run that has had a weight update allows it as little as any other word."""
    return f"{run}/start-{secrets.token_hex(4)}"


class PlaceInRun:
    """A context manager that holds the place.

    Args:
        gone: addresses of servers whose place nobody gave up.
        stop: ends the wait for a Redis that does not answer as the place is taken.
    """

    def __init__(self, pool: InferencePool, run: str, server: Server, *, gone: Sequence[str], stop: asyncio.Event) -> None:
        self._pool, self._run, self._server, self._gone, self._stop = pool, run, server, gone, stop

    async def __aenter__(self) -> Self:
        """Takes it.

        Raises:
            ServerTaken: another run has the address.
            StoppedWhileWaiting: before Redis answered.
        """
        if left := [url for url in self._gone if url != self._server.url]:
            await until_reached(lambda: self._pool.detach(self._run, left), self._stop)
        await until_reached(lambda: self._pool.attach(self._run, [self._server]), self._stop)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._try(self._pool.detach(self._run, [self._server.url]))

    async def drain(self, longest_s: float, is_busy: Callable[[], Awaitable[bool]]) -> None:
        """Gives jobs and calls time to end; returns when there are none.

        Args:
            is_busy: whether the server has calls in flight.
        """
        began_s = time.monotonic()
        await self._try(self._pool.drain(self._run, [self._server.url]))
        await _while(self._has_jobs, began_s + JOBS_SHARE * longest_s)
        await self._try(self._pool.detach(self._run, [self._server.url]))
        await _while(is_busy, began_s + longest_s)

    async def _has_jobs(self) -> bool:
        """False without an answer."""
        state = await self._try(self._pool.state(self._run))
        return state is not None and any(server.jobs for server in state.servers if server.url == self._server.url)

    async def _try(self, call: Awaitable[Reply]) -> Reply | None:
        try:
            return await call
        except (BrokerError, redis.RedisError) as error:
            log.warning("place_not_given_up", server=self._server.url, run=self._run, error=str(error))
            return None


async def _while(condition: Callable[[], Awaitable[bool]], until_s: float) -> None:
    while await condition():
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return
        await asyncio.sleep(min(LOOK_S, left_s))
