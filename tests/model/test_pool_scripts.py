"""Random interleavings of what can happen to a run's servers, leases, calls and pauses, against a reference: the invariants of ADR 12 hold
after each step.

Every call of a script may be made twice (its reply was lost). Time goes by in steps of the test and in nothing else: leases are given for
so long that none runs out by itself, and one that is to run out, or a look that is to be due, gets the date of now. So a busy machine that
lets seconds go by between two commands changes nothing, and the reference knows of every lease whether it lives. That leases run out by the
clock is seen in tests/integration/inference_pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from pipeline.inference_pool import Assignment, Begun, Call, DueLook, EndedCall, InferencePool, PoolLooks, Seen, Server, Wanted
from pipeline.inference_pool.pauses import PoolPauses
from pipeline.keys import Keys
from pipeline.redis_client import ask, command_client, redis_now_ms
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer, ServerKind
from pipeline.testing.servers import found_servers
from tests.model.reference_pool import RUN, ReferencePool, ReferenceServer

URLS = ("http://a", "http://b", "http://c")
LABELS = ("", "default", f"{RUN}/1.1", f"{RUN}/1.2")
JOBS, CALLS = 6, 3
LEASE_S = 36_000.0
"""None runs out by itself."""
AWAY_MS = 60_000
"""For so long no keeper asked; longer than the while after which no lease is judged for as long."""
LAX = 1.25
T = TypeVar("T")
twice = st.booleans()
urls, jobs, names = st.sampled_from(URLS), st.integers(0, JOBS - 1), st.integers(0, CALLS - 1)


class PoolMachine(RuleBasedStateMachine):
    """One run, on a server that all examples share."""

    server: ClassVar[PrivateServer]
    number: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        PoolMachine.number += 1
        namespace = f"m{PoolMachine.number}"
        self.runner = asyncio.Runner()
        self.client = command_client(QueueSettings(redis_url=self.server.url))
        self.keys = Keys.of_pool(namespace)
        self.pool = InferencePool(self.client, namespace, lease_s=LEASE_S)
        self.looks = PoolLooks(self.client, namespace)
        self.pauses = PoolPauses(self.client, namespace)
        self.want = ReferencePool()
        self.assigned: dict[int, Assignment] = {}
        """By job."""
        self.updates = 0
        self.pause_ended_ms = 0
        self.looking: set[str] = set()
        """Servers that a keeper has begun to look at."""
        self.stale_looks: set[str] = set()
        """Servers whose last look began before a pause ended."""

    def teardown(self) -> None:
        self.runner.run(self.client.aclose())
        self.runner.close()

    def do(self, call: Callable[[], Awaitable[T]], again: bool = False) -> T:
        """Makes a call, perhaps twice."""

        async def run() -> T:
            first = await call()
            return await call() if again else first

        return self.runner.run(run())

    @initialize()
    def start(self) -> None:
        self.attach(URLS[0], "", False)

    # ---- servers

    @rule(url=urls, label=st.sampled_from(LABELS), again=twice)
    def attach(self, url: str, label: str, again: bool) -> None:
        self.do(lambda: self.pool.attach(RUN, [Server(url, version=label)]), again)
        known = self.want.servers.setdefault(url, ReferenceServer())
        known.draining = False
        known.label = label or known.label

    @rule(url=urls, again=twice)
    def drain(self, url: str, again: bool) -> None:
        done = self.do(lambda: self.pool.drain(RUN, [url]), again)
        assert done == ([url] if url in self.want.servers else [])
        if done:
            self.want.servers[url].draining = True

    @rule(url=urls, alive=st.booleans(), label=st.sampled_from(LABELS[1:]), again=twice)
    def look(self, url: str, alive: bool, label: str, again: bool) -> None:
        self.do(lambda: self.looks.looked(DueLook(RUN, url, True, "", ()), Seen(alive=alive, label=label, started="1")), again)
        known = self.want.servers.get(url)
        if known is None or url in self.stale_looks:
            return  # it saw an engine that was paused and bore no version
        if alive:
            known.alive, known.fails, known.label = True, 0, label
        else:
            known.fails += 1 + again
            known.alive = known.alive and known.fails < 2

    # ---- leases

    @rule(job=jobs, avoid=st.sets(urls, max_size=2), again=twice)
    def assign(self, job: int, avoid: set[str], again: bool) -> None:
        wanted = Wanted(job=f"j{job}", attempt=1, group=f"g{job // 2}")
        holder = wanted.holder
        load = {url: len(server.leases) for url, server in self.want.servers.items()}
        (found,) = self.do(lambda: self.pool.assign_all(RUN, [wanted], avoid=sorted(avoid)), again)
        mine = {url for url, server in self.want.servers.items() if holder in server.leases}
        for url in [url for url in mine if url in avoid or not self.want.takes_calls(url)]:
            self.want.expire(url, holder)
            mine.discard(url)
            load[url] -= 1
        fitting = {url for url in self.want.servers if self.want.takes_jobs(url) and url not in avoid}
        if not isinstance(found, Assignment):
            assert not mine, "it has one that is well"
            assert not fitting, f"{found}, and there is a server"
            return
        assert found.server in (mine or fitting)
        if not mine:
            total = sum(load[url] for url in fitting)
            least = min(load[url] for url in fitting)
            assert load[found.server] in (least, min(load[found.server], LAX * (total + 1) / len(fitting))), "balanced within its bound"
        self.assigned[job] = found
        self.want.servers[found.server].live_on(holder)

    @precondition(lambda self: self.assigned)
    @rule(data=st.data(), again=twice)
    def renew(self, data: st.DataObject, again: bool) -> None:
        found = self.assigned[self.one_of_the_assigned(data)]
        (lives,) = self.do(lambda: self.pool.renew([found]), again)
        known = self.want.servers[found.server]
        assert lives == (found.holder in known.leases | known.over), "also one that ran out, as long as nobody swept it"
        if lives:
            known.live_on(found.holder)

    @precondition(lambda self: self.assigned)
    @rule(data=st.data(), again=twice)
    def release(self, data: st.DataObject, again: bool) -> None:
        found = self.assigned.pop(self.one_of_the_assigned(data))
        self.do(lambda: self.pool.release(found), again)
        self.want.expire(found.server, found.holder)

    @precondition(lambda self: self.assigned)
    @rule(data=st.data())
    def run_out(self, data: st.DataObject) -> None:
        """Its process has not renewed it in time."""
        found = self.assigned[self.one_of_the_assigned(data)]
        known, leases = self.want.servers[found.server], self.keys.pool_leases(RUN, found.server)
        over_ms = self.now_ms() - 1  # in the very millisecond of its date it counts as load and begins no call
        self.do(lambda: ask(self.client, "ZADD", leases, "XX", over_ms, found.holder))
        if found.holder in known.leases:
            known.run_out(found.holder)

    def one_of_the_assigned(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.assigned)), "job")

    # ---- calls

    @precondition(lambda self: self.assigned)
    @rule(data=st.data(), name=names, again=twice)
    def begin(self, data: st.DataObject, name: int, again: bool) -> None:
        job = self.one_of_the_assigned(data)
        found = self.assigned[job]
        call = Call(found, f"j{job}.c{name}")
        (answer,) = self.do(lambda: self.pool.begin_calls(RUN, [call]), again)
        known = self.want.servers[found.server]
        may = not self.want.paused_by and self.want.takes_calls(found.server) and found.holder in known.leases
        if isinstance(answer, Begun):
            assert may, "it may not"
            assert not self.want.allowed or answer.version == self.want.allowed
            known.calls.setdefault(found.holder, set()).add(call.id)
        else:
            assert not may, answer

    @precondition(lambda self: self.assigned)
    @rule(data=st.data(), name=names, again=twice)
    def end(self, data: st.DataObject, name: int, again: bool) -> None:
        job = self.one_of_the_assigned(data)
        found = self.assigned[job]
        call = Call(found, f"j{job}.c{name}")
        allowed = self.do(lambda: self.pool.end_calls(RUN, [EndedCall(call)]), again)
        assert allowed.lowest == self.want.allowed
        known = self.want.servers[found.server]
        known.calls.get(found.holder, set()).discard(call.id)
        known.to_abort.discard(call.id)

    # ---- keepers and trainers

    @rule(dies=st.booleans(), were_away=st.booleans())
    def keep(self, dies: bool, were_away: bool) -> None:
        """Keepers look at all servers; what ran out is swept, unless nobody could renew it."""
        while self.now_ms() <= self.pause_ended_ms:
            pass  # a look that begins in the millisecond in which a pause ended counts as one from before
        due = self.do(lambda: self.due(were_away))
        assert {look.url for look in due} == set(self.want.servers)
        if not were_away:
            for url, server in self.want.servers.items():
                for holder in set(server.over):
                    self.want.expire(url, holder)
        for look in due:
            self.stale_looks.discard(look.url)
            self.looking.add(look.url)
            assert set(look.to_abort) == self.want.servers[look.url].to_abort
            if not dies:
                self.do(lambda look=look: self.looks.aborted(look, period_ms=0))  # type: ignore[misc]  # bound now
                self.want.servers[look.url].to_abort.clear()

    @precondition(lambda self: not self.want.paused_by)
    @rule(again=twice)
    def pause(self, again: bool) -> None:
        self.updates += 1
        holder = f"t{self.updates}"
        self.do(lambda: self.pauses.take(RUN, 1, holder, why="update", mode="keep", to=f"{RUN}/1.{self.updates}", lease_s=LEASE_S), again)
        self.want.paused_by = holder

    @precondition(lambda self: self.want.paused_by)
    @rule(which=st.sets(urls), again=twice)
    def resume(self, which: set[str], again: bool) -> None:
        label, holder = f"{RUN}/1.{self.updates}", self.want.paused_by
        labels = {url: label for url in which if url in self.want.servers}
        self.do(lambda: self.pauses.resume(RUN, holder, holder, label=label, labels=labels), again)
        self.want.paused_by, self.want.allowed = "", label
        self.pause_ended_ms = self.now_ms()
        self.stale_looks |= self.looking
        for url in labels:
            known = self.want.servers[url]
            known.label, known.alive, known.fails = label, True, 0

    # ---- what holds after each step

    @invariant()
    def redis_agrees(self) -> None:
        state = self.do(lambda: self.pool.state(RUN))
        want = self.want
        assert {server.url for server in state.servers} == set(want.servers)
        assert (state.is_paused, state.allowed.lowest) == (bool(want.paused_by), want.allowed)
        for server in state.servers:
            known = want.servers[server.url]
            assert (server.draining, server.version) == (known.draining, known.label)
            assert (server.standing in ("up", "draining")) == want.takes_calls(server.url)
            assert server.calls == sum(map(len, known.calls.values())), "every call in flight stands there, and no other"
            assert server.to_abort == len(known.to_abort), "and what is to be aborted"
            assert server.jobs == len(known.leases), "load is live leases"
            there = self.do(lambda url=server.url: ask(self.client, "ZRANGE", self.keys.pool_leases(RUN, url), 0, -1))  # type: ignore[misc]  # now
            assert {holder.decode() for holder in there} == known.leases | known.over, "nobody sweeps what lives, or in place of a keeper"

    @invariant()
    def everything_runs_out(self) -> None:
        async def without_expiry() -> list[bytes]:
            found = [key async for key in self.client.scan_iter(match=f"{self.keys.tag}:*")]
            return [key for key in found if await ask(self.client, "PTTL", key) == -1]

        assert self.do(without_expiry) == []

    # ---- time

    def now_ms(self) -> int:
        """The clock of Redis."""
        return self.do(lambda: redis_now_ms(self.client))

    async def due(self, were_away: bool) -> list[DueLook]:
        """All looks, at a time when a keeper asked just before, or none had for a while."""
        now_ms = await redis_now_ms(self.client)
        for url in self.want.servers:
            await ask(self.client, "ZADD", self.keys.looks, "XX", now_ms, f"{RUN} {url}")
        # one that asked "in an hour" is not long ago, however slow this machine is
        asked_ms = now_ms - AWAY_MS if were_away else now_ms + 3_600_000
        await ask(self.client, "HSET", self.keys.pool_round, "at", asked_ms, "judges", 0)
        return await self.looks.due(takes_ms=0, period_ms=0)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_pool_agrees_with_its_reference_whatever_happens(server_kind: ServerKind) -> None:
    histories = 100 if server_kind == found_servers()[0] else 30  # the scripts are the same, only servers differ
    with PrivateServer(server_kind) as server:
        PoolMachine.server = server
        run_state_machine_as_test(PoolMachine, settings=settings(max_examples=histories, stateful_step_count=40))
