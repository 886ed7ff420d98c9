"""Keeps the reserve of a run filled from a data set, ahead of what the supervisor draws.

Invariants:
  1. A prompt is pushed under a stable id, so pushing it again changes nothing.
  2. A prompt that this history of the run is done with is not pushed again, also when the trainer was restarted; one that was done with in
     a history that the trainer gave up by going back is.
  3. The data set is read in a thread and only as far as the reserve has room: it may be slow, and longer than memory.
  4. A prompt that Redis lost is pushed again; one that is not here any more ends the run for this client, which says so: an epoch never
     passes over it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence

from pipeline.errors import InvalidRequest, QueueFull, RunLost
from pipeline.keys import Keys
from pipeline.prompts import encode_prompt, prompt_data
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts.step_calls import StepScripts
from trainer_client.calls import Calls
from trainer_client.dataset import PlannedPrompt, Rows, plan
from trainer_client.inbox import Inbox
from trainer_client.lifetime import Lifetime
from trainer_client.logs import Log
from trainer_client.on_loop import OnLoop
from trainer_client.progress import FeedProgress

log = Log(__name__)

BATCH = 128
LOOK_EVERY_S = 1.0
"""The reserve is looked at this often when nothing in the results stream said that it moved: a launch takes prompts without a word."""
DONE_STATES = frozenset((b"trained", b"filtered", b"dead"))
REPEAT_WINDOW_S = 60.0
"""Prompts pushed this long ago can be pushed again when Redis has lost its last writes."""
MARKS_A_CALL = 1024
REPEAT_BYTES = 64 * 1024 * 1024


class Feed(OnLoop):
    """Pushes one data set.

    Args:
        rows: the data set.
        progress: where it stands; kept up to date.
        base: incarnation in which this history of the run began.
        reserve: most prompts waiting in Redis.
        ready: set when the ledger stands where the trainer does; nothing is pushed before.
    """

    def __init__(
        self,
        rows: Rows,
        progress: FeedProgress,
        *,
        base: int,
        incarnation: int,
        run: str,
        reserve: int,
        max_body_bytes: int,
        ready: asyncio.Event,
        client: AsyncClient,
        keys: Keys,
        scripts: StepScripts,
        inbox: Inbox,
        calls: Calls,
        life: Lifetime,
    ) -> None:
        self.pushed = 0
        """Prompts that were new to Redis."""
        self.ended = asyncio.Event()
        """Set when all was pushed and Redis was told so."""
        self._progress = progress
        self._base = base
        self._incarnation = incarnation
        self._run = run
        self._reserve = reserve
        self._max_body_bytes = max_body_bytes
        self._ready = ready
        self._client = client
        self._keys = keys
        self._scripts = scripts
        self._inbox = inbox
        self._calls = calls
        self._life = life
        self._plan: Iterator[PlannedPrompt] = plan(rows, progress)
        self._recent: deque[tuple[float, str, bytes]] = deque()
        self._recent_bytes = 0
        self._unsettled: set[str] = set()
        """Prompts that were pushed, all that are outstanding among them."""
        self._look = asyncio.Event()

    async def work(self) -> None:
        """Feeds until the data set ends or the client does.

        Raises:
            InvalidRequest: it has no rows, or one that cannot travel.
        """
        stop = self._life.stop
        await self._life.pause(None, self._ready)
        while not stop.is_set():
            room = self._reserve - await self._waiting()
            if room <= 0:
                await self._pause(LOOK_EVERY_S)
                continue
            batch = await asyncio.to_thread(self._take, min(room, BATCH))
            if not batch:
                if not (self._progress.epoch or self._progress.position or self._progress.outstanding):
                    raise InvalidRequest("expected at least one row, got none", field="dataset")
                await self._end()
                return
            # before the push: a prompt may be trained and acked before it has answered, and must not be outstanding then
            wanted = [prompt for prompt in batch if self._progress.come_to(prompt.id, prompt.epoch, prompt.position)]
            await self._push(await self._not_done(wanted))

    def wake(self) -> None:
        """Looks at the reserve now."""
        self._look.set()

    async def repeat(self) -> int:
        """Pushes again what was pushed lately, in case Redis lost it; returns how many it had lost.

        Raises:
            RunLost: it lost some that are not here any more.
        """
        lost = await self._send([(prompt, body) for at, prompt, body in self._recent if at > time.monotonic() - REPEAT_WINDOW_S])
        await self._miss_none()
        if self.ended.is_set():
            await self._end()
        return lost

    async def _miss_none(self) -> None:
        self._unsettled &= self._progress.outstanding.keys()
        ids = sorted(self._unsettled)
        for at in range(0, len(ids), MARKS_A_CALL):
            part = ids[at : at + MARKS_A_CALL]
            marks = await self._calls.make_if_open(ask, self._client, "HMGET", self._keys.prompt_marks(self._run), *part)
            missing = [prompt for prompt, mark in zip(part, marks, strict=True) if mark is None]
            if missing:
                error = RunLost(self._run, f"{len(missing)} or more prompts that were pushed to it, {missing[0]} among them")
                self._life.refuse(error)
                raise error

    # ---- reading

    def _take(self, count: int) -> list[PlannedPrompt]:
        return list(itertools.islice(self._plan, count))

    def _encode(self, batch: Sequence[PlannedPrompt]) -> list[tuple[str, bytes]]:
        encoded = []
        for prompt in batch:
            field = f"dataset[{prompt.id.partition('-')[2]}]"
            data = prompt_data(prompt.load(), field=field)
            encoded.append((prompt.id, encode_prompt(prompt.id, data, max_body_bytes=self._max_body_bytes, field=field)))
        return encoded

    # ---- pushing

    async def _waiting(self) -> int:
        return int(await self._calls.make_if_open(ask, self._client, "ZCARD", self._keys.reserve(self._run)))

    async def _not_done(self, batch: Sequence[PlannedPrompt]) -> list[PlannedPrompt]:
        """Those of a batch that this history of the run is not done with. A run's first incarnation has no history."""
        if self._incarnation == 1 or not batch:
            return list(batch)
        ids = [prompt.id for prompt in batch]
        marks = await self._calls.make_if_open(ask, self._client, "HMGET", self._keys.prompt_marks(self._run), *ids)
        return [prompt for prompt, mark in zip(batch, marks, strict=True) if not self._is_done(mark)]

    def _is_done(self, mark: bytes | None) -> bool:
        words = mark.split() if mark else []
        return len(words) > 1 and words[0] in DONE_STATES and int(words[1]) >= self._base

    async def _push(self, batch: Sequence[PlannedPrompt]) -> None:
        encoded = await asyncio.to_thread(self._encode, batch)
        self.pushed += await self._send(encoded)
        self._unsettled.update(prompt for prompt, _ in encoded)
        if len(self._unsettled) > MARKS_A_CALL + 2 * len(self._progress.outstanding):
            self._unsettled &= self._progress.outstanding.keys()
        for prompt, body in encoded:
            self._recent.append((time.monotonic(), prompt, body))
            self._recent_bytes += len(body)
        while self._recent and (self._recent_bytes > REPEAT_BYTES or self._recent[0][0] < time.monotonic() - REPEAT_WINDOW_S):
            self._recent_bytes -= len(self._recent.popleft()[2])

    async def _send(self, prompts: Sequence[tuple[str, bytes]]) -> int:
        """Pushes, and waits while Redis is full; returns how many were new."""
        if not prompts:
            return 0
        told = False
        while not self._life.stop.is_set():
            try:
                fresh = await self._calls.make_if_open(self._scripts.push_prompts, self._run, self._incarnation, prompts)
                return sum(fresh)
            except QueueFull as error:
                if not told:
                    log.warning("feed_waits", run=self._run, why=error.why)
                    told = True
                await self._pause(error.retry_after_s)
        return 0

    async def _end(self) -> None:
        await self._calls.make_if_open(self._scripts.end_prompts, self._run, self._incarnation)
        self.ended.set()

    async def _pause(self, seconds: float) -> None:
        self._look.clear()
        await self._life.pause(seconds, self._look)
