"""Who chooses the server of a job: the pool's own script on a real Redis, and what it is compared with.

All keep a job's server for the life of the job, since all real ones do; the pool moves some when one server has nearly all.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections import Counter
from functools import cache
from hashlib import blake2b
from typing import Protocol

from ops.bench.routing_jobs import RoutedJob
from pipeline.inference_pool import Assignment, Begun, Call, DueLook, EndedCall, InferencePool, PoolLooks, Seen, Server, Wanted

POINTS_A_SERVER = 128
"""On the ring of consistent hashing."""
BOUND = 1.25
"""Of the mean load, for consistent hashing with bounded load."""


class Policy(Protocol):
    """Routing as the simulation drives it."""

    async def assign(self, job: RoutedJob, avoid: frozenset[str]) -> str:
        """The server of a job that has none. `avoid`: it was just refused there."""
        ...

    async def begin(self, job: RoutedJob, server: str) -> bool:
        """Whether a call may go to its server; False = it is to be assigned anew."""
        ...

    async def end(self, job: RoutedJob) -> None:
        """A call ended."""
        ...

    async def release(self, job: RoutedJob) -> None:
        """The job has no server any more."""
        ...

    async def join(self, server: str) -> None:
        """A server is new."""
        ...

    async def dead(self, server: str) -> None:
        """A server is found to be dead."""
        ...

    async def look(self, server: str) -> None:
        """A keeper's look at a server that is well."""
        ...


class _Local:
    """What the compared ones have in common: they know who is there, and count who has what."""

    def __init__(self) -> None:
        self.servers: list[str] = []
        self.live: Counter[str] = Counter()
        self._of: dict[int, str] = {}

    async def assign(self, job: RoutedJob, avoid: frozenset[str]) -> str:
        server = self.choose(job, avoid)
        self._of[job.number] = server
        self.live[server] += 1
        return server

    def choose(self, job: RoutedJob, avoid: frozenset[str]) -> str:
        raise NotImplementedError

    async def begin(self, job: RoutedJob, server: str) -> bool:
        return server in self.servers

    async def end(self, job: RoutedJob) -> None:
        """Nothing is kept of calls."""

    async def release(self, job: RoutedJob) -> None:
        self.live[self._of.pop(job.number)] -= 1

    async def join(self, server: str) -> None:
        self.servers = sorted([*self.servers, server])

    async def dead(self, server: str) -> None:
        self.servers = [other for other in self.servers if other != server]

    async def look(self, server: str) -> None:
        """Nobody looks."""

    def those(self, avoid: frozenset[str]) -> list[str]:
        return [server for server in self.servers if server not in avoid] or self.servers


class CountHeap(_Local):
    """A heap of how often each server was assigned: nothing is taken back when a job ends, a new one begins at 0, a dead one stays."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[int, str]] = []

    def choose(self, job: RoutedJob, avoid: frozenset[str]) -> str:
        count, server = heapq.heappop(self._heap)
        heapq.heappush(self._heap, (count + 1, server))
        return server

    async def join(self, server: str) -> None:
        await super().join(server)
        heapq.heappush(self._heap, (0, server))


class RoundRobin(_Local):
    """One after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    def choose(self, job: RoutedJob, avoid: frozenset[str]) -> str:
        self._next += 1
        those = self.those(avoid)
        return those[self._next % len(those)]


class ConsistentHashing(_Local):
    """A group's place on a ring, so that its members meet."""

    def choose(self, job: RoutedJob, avoid: frozenset[str]) -> str:
        return self.ring(job, avoid)[0]

    def ring(self, job: RoutedJob, avoid: frozenset[str]) -> list[str]:
        """Servers in the order of the ring, from the group's place on."""
        points = sorted((_place(f"{server}#{number}"), server) for server in self.those(avoid) for number in range(POINTS_A_SERVER))
        at = bisect(points, (_place(job.group), ""))
        return list(dict.fromkeys(server for _, server in points[at:] + points[:at]))


class BoundedHashing(ConsistentHashing):
    """The same, passing over servers with more than their bound."""

    def choose(self, job: RoutedJob, avoid: frozenset[str]) -> str:
        those = self.ring(job, avoid)
        most = BOUND * (sum(self.live[server] for server in those) + 1) / len(those)
        return next((server for server in those if self.live[server] + 1 <= most), min(those, key=lambda server: self.live[server]))


class Pool:
    """The pool's own scripts, on a real Redis."""

    def __init__(self, pool: InferencePool, looks: PoolLooks, run: str) -> None:
        self._pool, self._looks, self._run = pool, looks, run
        self._of: dict[int, Assignment] = {}

    async def assign(self, job: RoutedJob, avoid: frozenset[str]) -> str:
        (found,) = await self._pool.assign_all(self._run, [Wanted(job=job.name, attempt=1, group=job.group)], avoid=[*avoid])
        if not isinstance(found, Assignment):
            raise RuntimeError(f"no server for {job.name}: {found}")
        self._of[job.number] = found
        return found.server

    async def begin(self, job: RoutedJob, server: str) -> bool:
        (answer,) = await self._pool.begin_calls(self._run, [self._call(job)])
        return isinstance(answer, Begun)

    async def end(self, job: RoutedJob) -> None:
        await self._pool.end_calls(self._run, [EndedCall(self._call(job))])

    async def release(self, job: RoutedJob) -> None:
        await self._pool.release(self._of.pop(job.number))

    async def join(self, server: str) -> None:
        await self._pool.attach(self._run, [Server(server)])

    async def dead(self, server: str) -> None:
        for _ in range(2):
            await self._looks.looked(DueLook(self._run, server, True, "", ()), Seen(alive=False, why="connection refused"))

    async def look(self, server: str) -> None:
        await self._looks.looked(DueLook(self._run, server, True, "", ()), Seen(alive=True))

    def _call(self, job: RoutedJob) -> Call:
        return Call(self._of[job.number], f"{job.name}.call")


@cache
def _place(word: str) -> int:
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "big")
