"""Jobs, servers and a policy, by a virtual clock: what routing makes of them."""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from ops.bench.routing_engine import Engine, PrefixCache
from ops.bench.routing_jobs import RoutedJob
from ops.bench.routing_policies import Policy

CACHE_TOKENS = 200_000
LOOK_S = 0.75
"""From a look at a server to the next."""
FOUND_DEAD_S = 1.5
"""From the death of a server until looks have found it out; calls to it are refused meanwhile."""
REFUSED_S = 0.1
"""What a refused call costs its job."""


@dataclass(frozen=True, slots=True)
class Happening:
    """A server that comes or goes."""

    at_s: float
    server: str
    joins: bool


@dataclass(slots=True)
class Outcome:
    """What came of one simulation."""

    makespan_s: float = 0.0
    spread: float = 0.0
    """Mean over time of the most calls in flight at a server, over the mean."""
    hit_rate: float = 0.0
    """Cached tokens over prompt tokens."""
    lost_turns: int = 0
    """Turns that were begun again."""
    in_flight_at_death: int = 0
    joiner_peak: float = 0.0
    """Most jobs of a server that joined, over the mean of all at that time."""
    joiner_share: float = 0.0
    """What it sampled of its equal share, from its coming to the end of the last job's start."""
    joiner_backlog_s: float = 0.0
    """Longest line of prompts there, in engine time."""
    _spreads: list[tuple[float, float]] = field(default_factory=list)


class Simulation:
    """One run of all jobs.

    Args:
        slots: jobs at once.
    """

    def __init__(
        self, jobs: Sequence[RoutedJob], policy: Policy, servers: Sequence[str], happenings: Sequence[Happening] = (), *, slots: int
    ) -> None:
        self._waiting = list(reversed(jobs))
        self._jobs = jobs
        self._policy = policy
        self._first = list(servers)
        self._happenings = sorted(happenings, key=lambda happening: happening.at_s)
        self._slots = slots
        self._engines: dict[str, Engine] = {}
        self._turn = [0] * len(jobs)
        self._server = [""] * len(jobs)
        self._events: list[tuple[float, int, str, str | int]] = []
        self._order = itertools.count()
        self._now_s = 0.0
        self._joined: str = ""
        self._joined_s = 0.0
        self._sampled_before = 0.0
        self._held: dict[str, int] = {}
        self._share_taken = False
        self._begun = 0
        self.outcome = Outcome()

    async def run(self) -> Outcome:
        for name in self._first:
            await self._join(name)
        for happening in self._happenings:
            self._push(happening.at_s, "join" if happening.joins else "die", happening.server)
        for _ in range(self._slots):
            await self._start_next()
        self._push(LOOK_S, "look", "")
        left = len(self._jobs)
        while left:
            engine = min(self._engines.values(), key=Engine.next_end_s)
            at_s = engine.next_end_s()
            if self._events and self._events[0][0] <= at_s:
                at_s, _, what, who = heapq.heappop(self._events)
                await self._advance(at_s)
                left -= await self._happen(what, who)
            else:
                await self._advance(at_s)
        self._finish()
        return self.outcome

    async def _advance(self, at_s: float) -> None:
        took_s = at_s - self._now_s
        alive = [engine for engine in self._engines.values() if engine.is_alive]
        mean = statistics.fmean(engine.calls for engine in alive)
        if took_s > 0 and mean >= 1:
            self.outcome._spreads.append((took_s, max(engine.calls for engine in alive) / mean))
        self._now_s = at_s
        for engine in alive:
            for number in engine.advance(at_s):
                await self._policy.end(self._jobs[number])
                self._push(at_s + self._jobs[number].turns[self._turn[number]].tool_s, "turn", number)
                self._turn[number] += 1

    async def _happen(self, what: str, who: str | int) -> int:
        """Returns how many jobs ended."""
        if what == "turn" and isinstance(who, int):
            return await self._next_turn(who)
        if what == "again" and isinstance(who, int):
            await self._call(who, frozenset(name for name, engine in self._engines.items() if not engine.is_alive))
        elif what == "join":
            self._joined, self._joined_s = str(who), self._now_s
            self._sampled_before = sum(engine.sampled_tokens for engine in self._engines.values())
            await self._join(str(who))
        elif what == "die":
            await self._die(str(who))
        elif what == "look":
            for name, engine in self._engines.items():
                if engine.is_alive:
                    await self._policy.look(name)
            self._push(self._now_s + LOOK_S, "look", "")
        elif what == "found dead":
            await self._policy.dead(str(who))
        return 0

    async def _next_turn(self, number: int) -> int:
        if self._turn[number] < len(self._jobs[number].turns):
            await self._call(number, frozenset())
            return 0
        self._held[self._server[number]] -= 1
        await self._policy.release(self._jobs[number])
        await self._start_next()
        return 1

    async def _start_next(self) -> None:
        if self._waiting:
            await self._call(self._waiting.pop().number, frozenset())
        elif not self._share_taken:
            self._share_taken = True
            self._take_share()

    async def _call(self, number: int, avoid: frozenset[str]) -> None:
        job = self._jobs[number]
        if self._server[number] and not await self._policy.begin(job, self._server[number]):
            await self._leave(number)
        if not self._server[number]:
            self._server[number] = await self._policy.assign(job, avoid)
            self._held[self._server[number]] += 1
            await self._policy.begin(job, self._server[number])
            self._watch_joiner()
        engine = self._engines[self._server[number]]
        if not engine.is_alive:
            await self._policy.end(job)
            await self._leave(number)
            self._push(self._now_s + REFUSED_S, "again", number)
            return
        turn = job.turns[self._turn[number]]
        engine.begin(number, turn.prompt, turn.sampled)
        self._begun += 1
        if engine.name == self._joined:
            self.outcome.joiner_backlog_s = max(self.outcome.joiner_backlog_s, engine.backlog_s)

    async def _leave(self, number: int) -> None:
        self._held[self._server[number]] -= 1
        await self._policy.release(self._jobs[number])
        self._server[number] = ""

    async def _join(self, name: str) -> None:
        self._engines[name] = Engine(name, PrefixCache(CACHE_TOKENS), now_s=self._now_s)
        self._held[name] = 0
        await self._policy.join(name)

    async def _die(self, name: str) -> None:
        lost = self._engines[name].die()
        self.outcome.in_flight_at_death += len(lost)
        self._push(self._now_s + FOUND_DEAD_S, "found dead", name)
        for number in lost:
            await self._policy.end(self._jobs[number])
            await self._leave(number)
            self._push(self._now_s + REFUSED_S, "again", number)

    def _push(self, at_s: float, what: str, who: str | int) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), what, who))

    def _watch_joiner(self) -> None:
        if self._joined:
            mean = statistics.fmean(self._held[name] for name, engine in self._engines.items() if engine.is_alive)
            self.outcome.joiner_peak = max(self.outcome.joiner_peak, self._held[self._joined] / max(1.0, mean))

    def _take_share(self) -> None:
        """While jobs are waiting: afterwards a server has what it happens to have."""
        if self._joined:
            sampled = sum(engine.sampled_tokens for engine in self._engines.values()) - self._sampled_before
            self.outcome.joiner_share = self._engines[self._joined].sampled_tokens / max(1.0, sampled / len(self._engines))

    def _finish(self) -> None:
        engines = self._engines.values()
        out = self.outcome
        out.makespan_s = self._now_s
        out.lost_turns = self._begun - sum(len(job.turns) for job in self._jobs)
        out.spread = sum(took_s * most for took_s, most in out._spreads) / sum(took_s for took_s, _ in out._spreads)
        out.hit_rate = sum(engine.cached_tokens for engine in engines) / sum(engine.prompt_tokens for engine in engines)
