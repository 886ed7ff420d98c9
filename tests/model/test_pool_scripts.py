"""Random interleavings of what can happen to a run's servers, leases, calls and pauses, against a reference: the invariants of ADR 12 hold
after each step.

Every call of a script may be made twice (its reply was lost). Time goes by in leases of some milliseconds, which really run out; whether
one has is read from Redis, as nothing else can know it, and everything that follows from it is compared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import ClassVar, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from pipeline.inference_pool import Assignment, Begun, Call, DueLook, EndedCall, InferencePool, PoolLooks, Seen, Server, Wanted
from pipeline.inference_pool.pauses import PoolPauses
from pipeline.keys import Keys
from pipeline.redis_client import ask, command_client
from pipeline.settings import QueueSettings
from pipeline.testing import PrivateServer, ServerKind
from tests.model.reference_pool import RUN, ReferencePool, ReferenceServer

URLS = ("http://a", "http://b", "http://c")
LABELS = ("", "default", f"{RUN}/1.1", f"{RUN}/1.2")
JOBS, CALLS = 6, 3
LONG_S, SHORT_S = 600.0, 0.02
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
        self.pool = InferencePool(self.client, namespace, lease_s=LONG_S)
        self.short = InferencePool(self.client, namespace, lease_s=SHORT_S)
        self.looks = PoolLooks(self.client, namespace)
        self.pauses = PoolPauses(self.client, namespace)
        self.want = ReferencePool()
        self.assigned: dict[str, Assignment] = {}
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

    @rule(job=jobs, is_short=st.booleans(), avoid=st.sets(urls, max_size=2), again=twice)
    def assign(self, job: int, is_short: bool, avoid: set[str], again: bool) -> None:
        self.expire_what_ran_out()
        wanted = Wanted(job=f"j{job}", attempt=1, group=f"g{job // 2}")
        holder = wanted.holder
        load = {url: len(server.leases) for url, server in self.want.servers.items()}
        pool = self.short if is_short else self.pool
        (found,) = self.do(lambda: pool.assign_all(RUN, [wanted], avoid=sorted(avoid)), again)
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
        self.assigned[holder] = found
        self.want.servers[found.server].leases[holder] = self.expiry(found.server, holder)

    @rule(job=jobs, again=twice)
    def renew(self, job: int, again: bool) -> None:
        found = self.assigned.get(f"j{job}:1")
        if found is None:
            return
        self.expire_what_ran_out()
        (lives,) = self.do(lambda: self.pool.renew([found]), again)
        held = self.leases_of(found.server).get(found.holder)
        assert lives == (held is not None), "also one that ran out, as long as nobody swept it"
        if lives and found.server in self.want.servers:
            self.want.servers[found.server].leases[found.holder] = held or 0

    @rule(job=jobs, again=twice)
    def release(self, job: int, again: bool) -> None:
        found = self.assigned.pop(f"j{job}:1", None)
        if found is not None:
            self.do(lambda: self.pool.release(found), again)
            if found.server in self.want.servers:
                self.want.expire(found.server, found.holder)

    @precondition(lambda self: self.want.servers)
    @rule()
    def let_short_leases_run_out(self) -> None:
        deadline_s = time.monotonic() + 5
        while any(0 < at - self.now_ms() < 1000 for url in self.want.servers for at in self.leases_of(url).values()):
            assert time.monotonic() < deadline_s
        self.expire_what_ran_out()

    # ---- calls

    @rule(job=jobs, name=names, again=twice)
    def begin(self, job: int, name: int, again: bool) -> None:
        found = self.assigned.get(f"j{job}:1")
        if found is None:
            return
        call = Call(found, f"j{job}.c{name}")
        (answer,) = self.do(lambda: self.pool.begin_calls(RUN, [call]), again)
        held = self.leases_of(found.server).get(found.holder)
        may = not self.want.paused_by and self.want.takes_calls(found.server) and held is not None and held > self.now_ms()
        if isinstance(answer, Begun):
            assert may, "it may not"
            assert not self.want.allowed or answer.version == self.want.allowed
            known = self.want.servers[found.server]
            known.calls.setdefault(found.holder, set()).add(call.id)
            known.leases[found.holder] = held or 0
        else:
            assert not may, answer

    @rule(job=jobs, name=names, again=twice)
    def end(self, job: int, name: int, again: bool) -> None:
        found = self.assigned.get(f"j{job}:1")
        if found is None:
            return
        call = Call(found, f"j{job}.c{name}")
        allowed = self.do(lambda: self.pool.end_calls(RUN, [EndedCall(call)]), again)
        assert allowed.lowest == self.want.allowed
        known = self.want.servers.get(found.server)
        if known is not None:
            known.calls.get(found.holder, set()).discard(call.id)
            known.to_abort.discard(call.id)

    # ---- keepers and trainers

    @rule(dies=st.booleans())
    def keep(self, dies: bool) -> None:
        while self.now_ms() <= self.pause_ended_ms:
            pass  # a look that begins in the millisecond in which a pause ended counts as one from before
        due = self.do(lambda: self.looks.due(takes_ms=0, period_ms=0))
        self.expire_what_ran_out(is_swept=True)
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
        self.do(lambda: self.pauses.take(RUN, 1, holder, why="update", mode="keep", to=f"{RUN}/1.{self.updates}", lease_s=LONG_S), again)
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
            assert server.jobs <= len(known.leases), "load is live leases"

    @invariant()
    def everything_runs_out(self) -> None:
        async def without_expiry() -> list[bytes]:
            found = [key async for key in self.client.scan_iter(match=f"{self.keys.tag}:*")]
            return [key for key in found if await ask(self.client, "PTTL", key) == -1]

        assert self.do(without_expiry) == []

    # ---- what only Redis knows

    def now_ms(self) -> int:
        seconds, micros = self.do(lambda: ask(self.client, "TIME"))
        return int(seconds) * 1000 + int(micros) // 1000

    def leases_of(self, url: str) -> dict[str, int]:
        found = self.do(lambda: ask(self.client, "ZRANGE", self.keys.pool_leases(RUN, url), 0, -1, "WITHSCORES", withscores=True))
        return {holder.decode(): int(at) for holder, at in found}

    def expiry(self, url: str, holder: str) -> int:
        return self.leases_of(url).get(holder, 0)

    def expire_what_ran_out(self, *, is_swept: bool = False) -> None:
        """Leases that are over take no part any more; once they are swept their calls are to be aborted."""
        now_ms = self.now_ms()
        for url, server in self.want.servers.items():
            there = self.leases_of(url)
            for holder in [holder for holder, at in server.leases.items() if at <= now_ms]:
                if holder not in there:
                    self.want.expire(url, holder)
                elif not is_swept:
                    server.leases.pop(holder)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_pool_agrees_with_its_reference_whatever_happens(server_kind: ServerKind) -> None:
    with PrivateServer(server_kind) as server:
        PoolMachine.server = server
        run_state_machine_as_test(PoolMachine, settings=settings(max_examples=60, stateful_step_count=40))
