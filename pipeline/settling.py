"""Sends the ends of attempts and their finished turns to Redis, in batches; while one is on its way the next gathers.

Invariants:
  1. An end stays with us until a script has answered for it; only then is its slot free. Redis away is waited for, however long.
  2. One job that no script takes hurts itself only: a batch that is refused is sent one by one, and what is still refused is a dead
     letter.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import redis
import structlog

from pipeline.attempts import Awaiting, End, GivenUp, HandedOff, JobControl, Settled, cancelled
from pipeline.errors import BodyTooLarge, BrokerError, BrokerUnreachable
from pipeline.messages import Stage
from pipeline.scripts.calls import MAX_BATCH, Given, HandOff, Held, JournalTurn, Scripts, Settle
from pipeline.scripts.reward_calls import AwaitReward, RewardScripts
from pipeline.settings import QueueSettings
from pipeline.streams import RawEntry

log = structlog.get_logger(__name__)

OUTAGE_PAUSE_S = 0.1
OUTAGE_PAUSE_MAX_S = 5.0
MAX_BATCH_BYTES = 8 * 1024 * 1024
DAY_S = 86_400.0


@dataclass(slots=True)
class ConsumerStatistics:
    """What a consumer did since it started."""

    begun: int = 0
    handed_off: int = 0
    settled: int = 0
    given_up: int = 0
    fenced: int = 0
    again: int = 0
    cancelled: int = 0
    rejected: int = 0
    node_gone: int = 0


@dataclass(slots=True)
class Ending:
    """How an attempt ended, on its way to Redis."""

    control: JobControl
    end: End
    active_ms: int


class Settler:
    """The ends and turns of one consumer.

    Args:
        release: called when an attempt is ours no more.
        reject: keeps an entry that no script takes as a dead letter.
        unfit: told when jobs went back because this worker cannot serve them.
    """

    def __init__(
        self,
        settings: QueueSettings,
        scripts: Scripts,
        stage: Stage,
        consumer: str,
        statistics: ConsumerStatistics,
        *,
        release: Callable[[JobControl], None],
        reject: Callable[[RawEntry, str], Awaitable[None]],
        unfit: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._scripts = scripts
        self._stage = stage
        self._consumer = consumer
        self._release = release
        self._reject = reject
        self._unfit = unfit
        self._random = random.Random()
        self._endings: list[Ending] = []
        self._turns: list[tuple[JournalTurn, asyncio.Future[str]]] = []
        self._flush = asyncio.Event()
        self._ttl_ms = int((settings.run_ttl_s + DAY_S) * 1000)
        self.statistics = statistics

    def put(self, control: JobControl, end: End, active_ms: int) -> None:
        """Takes an end."""
        self._endings.append(Ending(control, end, active_ms))
        self._flush.set()

    def wake(self) -> None:
        """Sends what waits, and looks whether to stop."""
        self._flush.set()

    async def journal(self, turn: JournalTurn) -> str:
        """Takes a turn; returns the script's word for it.

        Raises:
            BodyTooLarge: it is above the bound of bodies.
            Exception: Redis refuses it, and no retry can help.
        """
        if len(turn.body) > self._settings.max_body_bytes:
            raise BodyTooLarge(f"turn {turn.index} of job {turn.job}", len(turn.body), self._settings.max_body_bytes)
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._turns.append((turn, future))
        self._flush.set()
        return await future

    async def run(self, stop: asyncio.Event) -> None:
        """Sends until `stop` is set and nothing waits."""
        while not (stop.is_set() and not self._endings and not self._turns):
            await self._flush.wait()
            self._flush.clear()
            while self._turns:
                await self._send_turns(self._take_turns())
            while self._endings:
                batch = self._take_batch()
                await self._send_endings(batch)

    def _take_batch(self) -> list[Ending]:
        """The oldest endings of one kind, up to a batch and its bytes."""
        kind, size = type(self._endings[0].end), 0
        batch: list[Ending] = []
        rest: list[Ending] = []
        for ending in self._endings:
            end = ending.end
            body = 0 if isinstance(end, GivenUp) else len(end.body)
            if isinstance(end, Settled):
                body += sum(map(len, end.attached.values()))
            if type(end) is kind and len(batch) < MAX_BATCH and (not batch or size + body <= MAX_BATCH_BYTES):
                batch.append(ending)
                size += body
            else:
                rest.append(ending)
        self._endings = rest
        return batch

    def _take_turns(self) -> list[tuple[JournalTurn, asyncio.Future[str]]]:
        """The oldest turns, up to a batch and its bytes."""
        size, count = 0, 0
        for turn, _ in self._turns[:MAX_BATCH]:
            size += len(turn.body)
            if count and size > MAX_BATCH_BYTES:
                break
            count += 1
        turns, self._turns = self._turns[:count], self._turns[count:]
        return turns

    async def _send_turns(self, turns: Sequence[tuple[JournalTurn, asyncio.Future[str]]]) -> None:
        words = await self._until_reached(lambda: self._scripts.journal([turn for turn, _ in turns], ttl_ms=self._ttl_ms))
        if not isinstance(words, list) and len(turns) > 1:
            for turn in turns:
                await self._send_turns([turn])
            return
        for at, (_, future) in enumerate(turns):
            if future.done():
                continue
            if isinstance(words, list):
                future.set_result(words[at])
            else:
                future.set_exception(words)

    async def _send_endings(self, batch: list[Ending]) -> None:
        batch = [self._bounded(ending) for ending in batch]
        words = await self._until_reached(lambda: self._call(batch))
        if isinstance(words, list):
            for ending, word in zip(batch, words, strict=True):
                self._ended(ending, word)
        elif len(batch) > 1:
            for ending in batch:
                await self._send_endings([ending])
        else:
            held = batch[0].control.held
            await self._until_reached(lambda: self._reject_held(held, str(words)))
            self._release(batch[0].control)

    async def _reject_held(self, held: Held, why: str) -> list[str]:
        await self._reject(RawEntry(held.stream, held.entry, held.job.encode()), f"job {held.job}: {why}")
        return []

    def _bounded(self, ending: Ending) -> Ending:
        end = ending.end
        if isinstance(end, GivenUp) or len(end.body) <= self._settings.max_body_bytes:
            return ending
        why = f"result_too_large: {len(end.body):,} bytes, the bound is {self._settings.max_body_bytes:,}"
        return Ending(ending.control, GivenUp("dead", why), ending.active_ms)

    async def _until_reached(self, call: Callable[[], Awaitable[list[str]]]) -> list[str] | Exception:
        """Calls until Redis answers; an answer that no retry can change is returned as the exception it is."""
        pause_s = OUTAGE_PAUSE_S
        while True:
            try:
                return await call()
            except BrokerUnreachable as error:
                log.warning("settle_waits_for_redis", consumer=self._consumer, waiting=len(self._endings), error=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(OUTAGE_PAUSE_MAX_S, pause_s * 2)
            except (BrokerError, redis.ResponseError) as error:
                log.error("settle_refused", consumer=self._consumer, error=str(error))
                return error
            except Exception as error:
                # an end that cannot even be said (a reward that is no number, a reason that is no text) ends its job, not this loop
                log.exception("settle_impossible", consumer=self._consumer)
                return error

    async def _call(self, batch: Sequence[Ending]) -> list[str]:
        first = batch[0].end
        if isinstance(first, HandedOff):
            offs = [
                HandOff(e.control.held, e.end.node, e.end.epoch, e.active_ms, e.end.body) for e in batch if isinstance(e.end, HandedOff)
            ]
            return await self._scripts.hand_off(self._stage, offs, ttl_ms=self._ttl_ms)
        if isinstance(first, Awaiting):
            waits = [
                AwaitReward(
                    e.control.held,
                    e.active_ms,
                    e.end.body,
                    e.end.kind,
                    e.end.settlement,
                    e.end.reward_deadline_s,
                    e.end.hold_s,
                    e.end.attached,
                )
                for e in batch
                if isinstance(e.end, Awaiting)
            ]
            return await RewardScripts(self._scripts.run_script).await_reward(self._stage, waits, ttl_ms=self._ttl_ms)
        if isinstance(first, Settled):
            ends = [
                Settle(e.control.held, e.active_ms, e.end.body, e.end.kind, e.end.settlement, e.end.attached)
                for e in batch
                if isinstance(e.end, Settled)
            ]
            return await self._scripts.settle(self._stage, ends, ttl_ms=self._ttl_ms)
        given = [
            Given(e.control.held, e.end.kind, e.end.why, self._random.random(), e.end.retry_stage)
            for e in batch
            if isinstance(e.end, GivenUp)
        ]
        return await self._scripts.give_up(
            self._stage,
            given,
            backoff_ms=int(self._settings.retry_backoff_s * 1000),
            backoff_max_ms=int(self._settings.retry_backoff_max_s * 1000),
        )

    def _ended(self, ending: Ending, word: str) -> None:
        control, end = ending.control, ending.end
        if word.startswith("cx:") and isinstance(end, HandedOff):
            # cancelled between the work and the hand-off: it ends as cancelled instead
            self._endings.append(Ending(control, cancelled(word[3:]), ending.active_ms))
            self._flush.set()
            return
        if word == "fenced":
            self.statistics.fenced += 1
        elif word == "again":
            self.statistics.again += 1
        elif word == "node_gone":
            self.statistics.node_gone += 1
            self._unfit("no RUN worker of this node reads its lane: what INIT makes here has nowhere to go")
        elif isinstance(end, HandedOff):
            self.statistics.handed_off += 1
        elif isinstance(end, Settled):
            self.statistics.settled += 1
        else:
            self.statistics.given_up += 1
        if control.on_answered is not None:
            control.on_answered(end, word)
        self._release(control)
