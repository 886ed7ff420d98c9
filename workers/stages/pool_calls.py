"""What the jobs of this process say to the pool in Redis about their model calls, gathered: assign, begin, end, release.

Invariants:
  1. A call goes out only after Redis answered that it may; without an answer there is none.
  2. Each call that began is said to have ended, as often as it takes: a pause of its run waits for that. What this process cannot say any
     more is swept with its leases.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import redis
import structlog

from pipeline.errors import BrokerError
from pipeline.inference_pool import AllowedLabels, Assignment, BeginRefusal, Begun, Call, EndedCall, InferencePool, NoServer, Wanted
from pipeline.inference_pool.pool import MAX_BATCH
from workers.stages.gathered_answers import GatheredAnswers

log = structlog.get_logger(__name__)
Item = TypeVar("Item")

SAY_AGAIN_S = 0.5
LAST_WORD_S = 2.0
"""Who leaves says for this long how its calls ended; what is not said then is left to the leases."""


class PoolCalls:
    """The calls of one process. An async context manager.

    Args:
        avoided: servers that are not to be assigned just now.
    """

    def __init__(self, pool: InferencePool, *, avoided: Callable[[], Sequence[str]]) -> None:
        self._pool = pool
        self._avoided = avoided
        self._assigns: GatheredAnswers[tuple[str, Wanted], Assignment | NoServer] = GatheredAnswers(
            self._send_assigns, "assign model servers", most=MAX_BATCH
        )
        self._begins: GatheredAnswers[Call, Begun | BeginRefusal] = GatheredAnswers(self._send_begins, "begin model calls", most=MAX_BATCH)
        self._releases: GatheredAnswers[Assignment, None] = GatheredAnswers(self._send_releases, "release assignments", most=MAX_BATCH)
        self._ended: list[tuple[EndedCall, asyncio.Future[AllowedLabels]]] = []
        self._has_ended = asyncio.Event()
        self._saying: asyncio.Task[None] | None = None

    async def __aenter__(self) -> PoolCalls:
        self._saying = asyncio.create_task(self._say_ends(), name="end model calls")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._assigns.close()
        await self._begins.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD_S):
                await asyncio.gather(*(pair[1] for pair in self._ended), return_exceptions=True)
        if self._ended:
            log.error("ends_left_to_leases", calls=len(self._ended), what="Redis does not answer")
        if self._saying is not None:
            self._saying.cancel()
            await asyncio.gather(self._saying, return_exceptions=True)
        for pair in self._ended:
            pair[1].cancel()
        await self._releases.close()

    async def assign(self, run: str, wanted: Wanted) -> Assignment | NoServer:
        """A server, or why there is none.

        Raises:
            BrokerError
        """
        return await self._assigns.ask((run, wanted))

    async def begin(self, call: Call) -> Begun | BeginRefusal:
        """Whether a call may go out. Who is cancelled meanwhile has no call: should it begin all the same, it ends at once.

        Raises:
            BrokerError
        """
        answer = self._begins.ask(call)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(lambda _: self.end(EndedCall(call)))
            raise

    def end(self, ended: EndedCall) -> asyncio.Future[AllowedLabels]:
        """A call has ended. What the run allows now is to come; nobody has to wait for it."""
        told: asyncio.Future[AllowedLabels] = asyncio.get_running_loop().create_future()
        self._ended.append((ended, told))
        self._has_ended.set()
        return told

    async def release(self, assignment: Assignment) -> None:
        """Gives a lease back.

        Raises:
            BrokerError
        """
        await self._releases.ask(assignment)

    async def _send_assigns(self, asked: Sequence[tuple[str, Wanted]]) -> list[Assignment | NoServer]:
        found: dict[int, Assignment | NoServer] = {}
        for run, places in _by_run((run for run, _ in asked)).items():
            answers = await self._pool.assign_all(run, [asked[place][1] for place in places], avoid=self._avoided())
            found.update(zip(places, answers, strict=True))
        return [found[place] for place in range(len(asked))]

    async def _send_begins(self, calls: Sequence[Call]) -> list[Begun | BeginRefusal]:
        found: dict[int, Begun | BeginRefusal] = {}
        for run, places in _by_run(call.assignment.run for call in calls).items():
            answers = await self._pool.begin_calls(run, [calls[place] for place in places])
            found.update(zip(places, answers, strict=True))
        return [found[place] for place in range(len(calls))]

    async def _send_releases(self, assignments: Sequence[Assignment]) -> list[None]:
        await self._pool.release(*assignments)
        return [None] * len(assignments)

    async def _say_ends(self) -> None:
        while True:
            await self._has_ended.wait()
            await asyncio.sleep(0)  # others of this turn come with us
            try:
                await self._say_some(self._ended[:MAX_BATCH])
            except (BrokerError, redis.RedisError) as error:
                log.warning("ends_not_said", calls=len(self._ended), error=str(error))
                await asyncio.sleep(SAY_AGAIN_S)
            if not self._ended:
                self._has_ended.clear()

    async def _say_some(self, ended: Sequence[tuple[EndedCall, asyncio.Future[AllowedLabels]]]) -> None:
        for run, places in _by_run(one.call.assignment.run for one, _ in ended).items():
            said = [ended[place] for place in places]
            allowed = await self._pool.end_calls(run, [pair[0] for pair in said])
            for _, told in said:
                if not told.done():
                    told.set_result(allowed)
            self._ended = [pair for pair in self._ended if pair not in said]


def _by_run(runs: Iterable[str]) -> dict[str, list[int]]:
    """Places of each run."""
    places: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        places.setdefault(run, []).append(place)
    return places
