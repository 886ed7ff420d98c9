"""A model of one inference engine for concurrency: continuous batching in a bounded KV cache, by a virtual clock.

What is modelled, since concurrency acts by it: a step takes longer with more calls, but less than in proportion; a call occupies KV cache
for its whole context; when that is full the call that came last is preempted and computed again later; the prefix of a call that ended
stays cached until others need the room; prefill takes the engine's time from all. What is not: blocks, chunks, prefixes shared by a group,
by which routing acts (`routing_engine.py`). Both run at the same speeds.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from ops.bench.routing_engine import PREFILL_TOKENS_S, STEP_S, STEP_S_A_CALL
from workers.stages.concurrency import ServerLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """What bounds one engine. Its KV cache is a tenth of what a 7B model has on one device, so that jobs are short."""

    max_running: int = 256
    kv_tokens: int


@dataclass(slots=True, eq=False)
class EngineCall:
    """A call of one job: it ends when nothing is left to sample."""

    job: int
    context: float
    """Tokens before it and sampled in it."""
    left: float
    """Tokens to sample."""


@dataclass(slots=True)
class Engine:
    """One server."""

    name: str
    shape: EngineShape
    running: list[EngineCall] = field(default_factory=list)
    """In the order of admission."""
    waiting: deque[EngineCall] = field(default_factory=deque)
    sampled: float = 0.0
    prefilled: float = 0.0
    preemptions: int = 0
    _cached: OrderedDict[int, float] = field(default_factory=OrderedDict)
    """By job, tokens of prefix that no running call holds; the longest unused first."""
    _debt_s: float = 0.0
    """Engine time that prefill took beyond the last tick."""

    @property
    def kv_used(self) -> float:
        """Tokens that running calls hold."""
        return sum(call.context for call in self.running)

    def load(self, age_s: float) -> ServerLoad:
        """What a look sees."""
        return ServerLoad(
            server=self.name,
            running=len(self.running),
            waiting=len(self.waiting),
            kv=min(1.0, self.kv_used / self.shape.kv_tokens),
            age_s=age_s,
        )

    def begin(self, call: EngineCall) -> None:
        """A call arrives."""
        self.waiting.append(call)

    def abort(self, call: EngineCall) -> None:
        """A call ends early; what it computed stays cached while there is room."""
        if call in self.running:
            self.running.remove(call)
            self._cache(call)
        elif call in self.waiting:
            self.waiting.remove(call)

    def tick(self, span_s: float) -> list[EngineCall]:
        """Works for so long; the calls that ended."""
        free_s = span_s - self._debt_s
        free_s -= self._admit()
        if free_s <= 0 or not self.running:
            self._debt_s = max(0.0, -free_s)
            return []
        self._debt_s = 0.0
        tokens = free_s / (STEP_S + STEP_S_A_CALL * len(self.running))
        ended = []
        for call in self.running:
            said = min(tokens, call.left)
            call.context += said
            call.left -= said
            self.sampled += said
            if call.left <= 0:
                ended.append(call)
        for call in ended:
            self.running.remove(call)
            self._cache(call)
        self._preempt()
        return ended

    def _admit(self) -> float:
        spent_s = 0.0
        used = self.kv_used
        while self.waiting and len(self.running) < self.shape.max_running:
            call = self.waiting[0]
            if used + call.context > 0.99 * self.shape.kv_tokens:
                break
            self.waiting.popleft()
            missing = call.context - min(call.context, self._cached.pop(call.job, 0.0))
            self.prefilled += missing
            spent_s += missing / PREFILL_TOKENS_S
            used += call.context
            self.running.append(call)
        self._evict(used)
        return spent_s

    def _preempt(self) -> None:
        used = self.kv_used
        while used > self.shape.kv_tokens and len(self.running) > 1:
            last = self.running.pop()
            used -= last.context
            self.waiting.appendleft(last)
            self.preemptions += 1
        self._evict(used)

    def _cache(self, call: EngineCall) -> None:
        self._cached[call.job] = call.context
        self._cached.move_to_end(call.job)

    def _evict(self, used: float) -> None:
        room = self.shape.kv_tokens - used
        held = sum(self._cached.values())
        while self._cached and held > room:
            _, tokens = self._cached.popitem(last=False)
            held -= tokens
