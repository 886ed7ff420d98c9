"""The line of calls before a model: who waits, who holds a place, what a pause keeps out, how a call ends.

Engines whose tokens come from a script and engines whose tokens come from a network stand behind the same line (`engine.py`,
`workers/llm/tiny`).

Invariants:
  1. A call ends once: with what the engine gave, by an abort, or with the task that awaits it. Then its place is the next one's.
  2. A pause keeps out what comes after it; in the mode `keep` nothing is sampled, `abort` ends what was accepted before and `wait` lets it
     finish: both return when it is gone.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from pipeline.engines.control import PauseMode
from workers.llm.scripted.call import Call, Output, Seat
from workers.llm.scripted.options import ServerOptions

S = TypeVar("S", bound=Seat)


class EngineBusyError(Exception):
    """More calls than the server keeps."""


class EnginePausedError(Exception):
    """The server takes no calls while it is paused."""


class Line(ABC, Generic[S]):
    """All calls of one server. Lives on one event loop."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self.paused: PauseMode | None = None
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._calls: dict[int, S] = {}
        """By identity: a client may send one id twice."""
        self._line: deque[S] = deque()
        self._n_running = 0
        self._n_accepted = 0
        self.finished: Counter[str] = Counter()
        """Calls by finish; `disconnected` ones are not among vLLM's, so they have a word of their own."""
        self._ended_tokens = 0
        """Tokens of calls that have ended."""

    # ---- what an engine is

    @abstractmethod
    def _seat(self, call: Call) -> S:
        """A call that has come."""

    @abstractmethod
    async def _sample(self, seat: S) -> Output:
        """The tokens of a call that has its place. Watches `seat.aborted`, for which `seat.changed` is set."""

    @abstractmethod
    def _stand(self) -> None:
        """A pause with `keep` begins: no token comes out until `_go_on`."""

    @abstractmethod
    def _go_on(self) -> None:
        """It is over."""

    @abstractmethod
    def _forget_computed(self) -> None:
        """A pause clears what was computed: keys and values of cached prefixes, and of calls that stand."""

    # ---- calls

    @property
    def n_running(self) -> int:
        """Calls that hold a place, frozen ones included."""
        return self._n_running

    @property
    def n_waiting(self) -> int:
        """Calls in line; those that arrived during a pause do not show, as in vLLM."""
        return len(self._line)

    def request_ids(self) -> list[str]:
        """Ids of all calls accepted and not ended."""
        return [seat.call.request_id for seat in self._calls.values()]

    async def run(self, call: Call) -> Output:
        """Sample. Ends early by `abort` or with the awaiting task.

        Raises:
            EngineBusyError: too many calls.
            EnginePausedError: paused, on a wire that refuses then.
        """
        if self.paused in ("abort", "wait") and self._options.wire == "0.33":
            raise EnginePausedError
        if len(self._calls) >= self._options.max_requests:
            raise EngineBusyError
        seat = self._seat(call)
        self._calls[id(seat)] = seat
        try:
            output = await self._run(seat)
        except asyncio.CancelledError:
            self.finished["disconnected"] += 1
            raise
        finally:
            self._forget(seat)
        self.finished[output.finish] += 1
        self._ended_tokens += len(output.token_ids)
        return output

    async def _run(self, seat: S) -> Output:
        while not self._resumed.is_set() and not seat.aborted:
            await self._wait(seat)
        if not seat.aborted:
            await self._take_place(seat)
        if not seat.placed:
            return Output(token_ids=[], logprobs=[], finish="abort", stop_reason=None, spans=[], cached_tokens=0)
        return await self._sample(seat)

    async def _take_place(self, seat: S) -> None:
        """Stand in line until there is a place and the engine samples."""
        seat.accepted = True
        self._n_accepted += 1
        self._idle.clear()
        self._line.append(seat)
        self._move_line()
        while seat in self._line:
            if seat.aborted:
                self._line.remove(seat)
                return
            await self._wait(seat)

    async def _wait(self, seat: S, timeout_s: float | None = None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await seat.changed.wait()
        except TimeoutError:
            return
        seat.changed.clear()

    def _move_line(self) -> None:
        while self._line and self._n_running < self._options.max_running and self.paused != "keep":
            first = self._line.popleft()
            self._n_running += 1
            first.placed = True
            first.changed.set()

    def _forget(self, seat: S) -> None:
        self._calls.pop(id(seat), None)
        if seat.placed:
            self._n_running -= 1
        elif seat in self._line:
            self._line.remove(seat)
        if seat.accepted:
            self._n_accepted -= 1
            if not self._n_accepted:
                self._idle.set()
        self._move_line()

    def _seats(self) -> Iterator[S]:
        """All calls that have come and not ended."""
        return iter(self._calls.values())

    # ---- control

    def abort(self, request_ids: Sequence[str], *, accepted_only: bool = False) -> None:
        """End calls by their full ids; unknown ones are nobody's.

        Args:
            accepted_only: not those that a pause keeps out.
        """
        wanted = frozenset(request_ids)
        for seat in self._seats():
            if seat.call.request_id in wanted and (seat.accepted or not accepted_only):
                seat.aborted = True
                seat.changed.set()

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        """Stop sampling; see the wire's table of modes. `wait` returns when what was accepted before is done."""
        self.paused = mode
        self._resumed.clear()
        if mode == "keep":
            self._stand()
        else:
            if mode == "abort":
                self.abort([seat.call.request_id for seat in self._seats() if seat.accepted])
            await self._idle.wait()
        if clear_cache:
            self._forget_computed()

    def resume(self) -> None:
        """Sample again."""
        stood, self.paused = self.paused == "keep", None
        self._resumed.set()
        if stood:
            self._go_on()
        for seat in self._seats():
            seat.changed.set()
        self._move_line()
