"""A model of one inference server for routing: continuous batching with a prefix cache by blocks, in virtual time.

What is modelled, since routing acts by it: calls decode at one rate, which falls with their number; prefill of tokens that are not cached
takes engine time from all of them; the prefix of a call is cached in blocks, shared by whatever begins alike, and the block unused for
longest makes room. Figures are those of a 7B model on one device. What is not modelled: preemption, and the sizes of chunks.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

BLOCK_TOKENS = 16
STEP_S, STEP_S_A_CALL = 0.020, 0.0003
PREFILL_TOKENS_S = 8_000.0
PREFILL_SHARE = 0.5
"""Of the engine's time, while any prompt waits: the rest is for decoding."""

Span = tuple[Hashable, int, int]
"""A stretch of a prompt: whose it is, its first block, one past its last."""


class PrefixCache:
    """Blocks in the order of their last use.

    Args:
        tokens: how many it holds.
    """

    def __init__(self, tokens: int) -> None:
        self._most = tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[tuple[Hashable, int], None] = OrderedDict()

    def take(self, prompt: Sequence[Span]) -> int:
        """Puts a prompt in; answers how many of its blocks were there, from its beginning without a gap."""
        hits, is_whole = 0, True
        for owner, first, end in prompt:
            for number in range(first, end):
                key = (owner, number)
                if key in self._blocks:
                    self._blocks.move_to_end(key)
                    hits += is_whole
                else:
                    is_whole = False
                    self._blocks[key] = None
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)
        return hits


@dataclass(slots=True)
class Engine:
    """One server. Time is given to it; it says when its next call ends."""

    name: str
    cache: PrefixCache
    now_s: float = 0.0
    is_alive: bool = True
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: float = 0.0
    _served: float = 0.0
    """Tokens that each call in decoding has sampled since the beginning."""
    _decoding: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Heap: served when it ends, order, call, its tokens."""
    _prefill: deque[tuple[int, int]] = field(default_factory=deque)
    """Call and its tokens to sample, in order of arrival."""
    _prefill_left: float = 0.0
    """Uncached tokens of the first in line."""
    _uncached: deque[float] = field(default_factory=deque)
    _order: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def calls(self) -> int:
        """In flight."""
        return len(self._decoding) + len(self._prefill)

    @property
    def backlog_s(self) -> float:
        """Engine time of the prompts in line."""
        return (self._prefill_left + sum(itertools.islice(self._uncached, 1, None))) / PREFILL_TOKENS_S if self._prefill else 0.0

    def begin(self, call: int, prompt: Sequence[Span], sampled: int) -> None:
        """A call arrives, now."""
        blocks = sum(end - first for _, first, end in prompt)
        hits = self.cache.take(prompt)
        self.prompt_tokens += blocks * BLOCK_TOKENS
        self.cached_tokens += hits * BLOCK_TOKENS
        uncached = float((blocks - hits) * BLOCK_TOKENS + 1)
        self._prefill.append((call, sampled))
        self._uncached.append(uncached)
        if len(self._prefill) == 1:
            self._prefill_left = uncached

    def next_end_s(self) -> float:
        """When something of this server changes next by itself."""
        ends = float("inf")
        if self._prefill:
            ends = self.now_s + self._prefill_left / (PREFILL_TOKENS_S * self._prefill_share())
        if self._decoding:
            ends = min(ends, self.now_s + (self._decoding[0][0] - self._served) / self._rate())
        return ends

    def advance(self, now_s: float) -> list[int]:
        """Time goes by until `now_s`, at most to `next_end_s`. Returns the calls that ended."""
        took_s = now_s - self.now_s
        self.now_s = now_s
        if took_s > 0:
            share = self._prefill_share()
            if self._decoding:
                gained = took_s * self._rate()
                self._served += gained
                self.sampled_tokens += gained * len(self._decoding)
            if self._prefill:
                self._prefill_left -= took_s * PREFILL_TOKENS_S * share
        if self._prefill and self._prefill_left <= 1e-6:
            call, sampled = self._prefill.popleft()
            self._uncached.popleft()
            heapq.heappush(self._decoding, (self._served + sampled, next(self._order), call, sampled))
            self._prefill_left = self._uncached[0] if self._uncached else 0.0
        ended = []
        while self._decoding and self._decoding[0][0] <= self._served + 1e-6:
            ended.append(heapq.heappop(self._decoding)[2])
        return ended

    def die(self) -> list[int]:
        """Everything on it is gone. Returns the calls that were in flight."""
        lost = [call for call, _ in self._prefill] + [entry[2] for entry in self._decoding]
        self.is_alive = False
        self._prefill.clear()
        self._uncached.clear()
        self._decoding.clear()
        return lost

    def _prefill_share(self) -> float:
        return PREFILL_SHARE if self._decoding else 1.0

    def _rate(self) -> float:
        """Tokens a second of each call in decoding."""
        share = 1.0 - PREFILL_SHARE if self._prefill else 1.0
        return share / (STEP_S + STEP_S_A_CALL * len(self._decoding))
