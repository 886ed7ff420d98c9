"""Random interleavings of everything that can happen to jobs, against a reference: promises 1 to 3 hold after each step.

Every call may be made twice (its reply was lost), every token that was ever given out may act again, late (zombies), names are taken over
by new boots, the server is killed, streams are deleted, nodes come and go. After each step each word, each job and all places agree with
the reference, and the counters with both; at the end all jobs are worked off and every one has its one record."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeVar, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pipeline.errors import RunClosed
from pipeline.keys import Keys
from pipeline.messages import Recovery, Stage
from pipeline.redis_client import ask, command_client
from pipeline.scripts import Claim, JournalTurn, Scripts, Unit
from pipeline.scripts.calls import Accepted, GiveUpKind, Held
from pipeline.settings import QueueSettings
from pipeline.testing import ManualWorker, PrivateServer, QueueAudit, ServerKind, a_group, a_settlement, a_template, a_unit, jobs_of
from pipeline.testing.servers import found_servers
from tests.model.reference_queue import Delivery, Job, Name, ReferenceQueue, Token

RUN, NODE, TTL_MS = "run1", "n1", 3_600_000
STAGES = [stage.value for stage in Stage]
MOST_RESTARTS = 1
T = TypeVar("T")
few = st.integers(1, 3)
twice = st.booleans()


class QueueMachine(RuleBasedStateMachine):
    """One run, its workers and its node, on a server of its own."""

    server: ClassVar[PrivateServer]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.client = command_client(QueueSettings(redis_url=self.server.url))
        self.keys = Keys("{rs:0}")
        self.scripts = Scripts(self.client, self.keys)
        self.audit = QueueAudit(self.client, self.keys)
        self.units: list[Unit] = []
        self.claims: dict[Delivery, Claim] = {}
        self.helds: dict[Token, Held] = {}
        self.boots: dict[str, int] = {}
        self.prompts = self.epochs = self.restarts = 0
        self.incarnation = 0

    # ---- the machinery of the test

    def a_token(self, data: st.DataObject) -> Token:
        """An attempt that somebody believes to hold; as often as not one that is current."""
        current = [token for token in self.helds if self.model.is_current(token)]
        wants_current: bool = data.draw(st.booleans())
        return data.draw(st.sampled_from(current if current and wants_current else list(self.helds)))

    def a_batch(self, data: st.DataObject) -> list[Token]:
        """What a worker sends in one call: attempts of its stage, some of them perhaps twice."""
        tokens = [self.a_token(data) for _ in range(data.draw(few))]
        return [token for token in tokens if token.stage == tokens[0].stage]

    def do(self, work: Awaitable[T]) -> T:
        async def whole() -> T:
            return await work

        return self.runner.run(whole())

    def check(self, call: Callable[[], Awaitable[T]], expected: Callable[[], object], twice: bool) -> T:
        """Makes a call once or twice; each answer is the one of the reference."""
        answer = self.do(call())
        assert answer == expected()
        if twice:
            again = self.do(call())
            assert again == expected(), "the second call"
        return answer

    def worker(self, name: Name, *, lane: bool = False) -> ManualWorker:
        stage = Stage(name[0].split("-")[0])
        stream = self.keys.stage_stream(stage, node=NODE if lane else "")
        return ManualWorker(self.scripts, stage, name[0], boot=name[1], stream=stream, window=self.model.window)

    def current(self, consumer: str) -> Name:
        """The newest boot of a name."""
        if consumer not in self.boots:
            self.boots[consumer] = 1
            name = (consumer, "boot1")
            assert self.do(self.worker(name).take_name()) is None
            self.model.names[consumer] = name[1]
        return consumer, f"boot{self.boots[consumer]}"

    @initialize(
        max_failed=st.integers(0, 2),
        max_lost=st.integers(0, 2),
        salvages=st.booleans(),
        quota=st.sampled_from([0, 0, 3]),
        window=st.integers(1, 6),
        first=st.lists(st.sampled_from([0, 2, 3]), min_size=2, max_size=4),
    )
    def connect(self, max_failed: int, max_lost: int, salvages: bool, quota: int, window: int, first: list[int]) -> None:
        self.do(self.client.flushall())
        self.model = ReferenceQueue(max_failed=max_failed, max_lost=max_lost, salvages=salvages, quota=quota, window=window)
        self.nonce = "n1"
        self.incarnation = self.do(self.scripts.connect_run(RUN, nonce=self.nonce, ttl_s=86_400, quota=quota))
        for members in first:
            self.bring(members)

    def teardown(self) -> None:
        if hasattr(self, "model") and sys.exc_info()[0] is None:
            self.work_off()
        self.do(self.client.aclose())
        self.runner.close()

    # ---- jobs come in

    async def accept(self, units: list[Unit]) -> list[bool]:
        model = self.model
        template = a_template(
            max_failed=model.max_failed, max_lost=model.max_lost, recovery=Recovery.SALVAGE_PARTIAL if model.salvages else Recovery.RESTART
        )
        accepted = await self.scripts.accept(
            RUN, self.incarnation, template, "t1", b"template", units, max_waiting=1000, window=model.window
        )
        return [state is Accepted.NEW for state in accepted]

    @precondition(lambda self: not self.model.closed and len(self.model.jobs) < 14)
    @rule(members=st.sampled_from([0, 2, 3]), twice=twice)
    def new_unit(self, members: int, twice: bool) -> None:
        unit = self.bring(members)
        if twice:
            assert self.do(self.accept([unit])) == [False]

    def bring(self, members: int) -> Unit:
        self.prompts += 1
        unit = a_group(RUN, f"p{self.prompts}", members=members) if members else a_unit(RUN, f"p{self.prompts}")
        assert self.do(self.accept([unit])) == [True]
        self.units.append(unit)
        self.model.jobs |= {job: Job(job, unit.id) for job in jobs_of(unit)}
        return unit

    @precondition(lambda self: not self.model.closed and self.prompts > 0)
    @rule(data=st.data())
    def old_unit_again(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, self.prompts))
        unit = a_unit(RUN, f"p{number}")
        group = next((known for known in self.units if known.id == unit.id), None)
        if group is not None or unit.id in self.model.acked:
            assert self.do(self.accept([group or unit])) == [False]

    @rule()
    def admit(self) -> None:
        self.do(self.scripts.admit(["none"], self.model.window))
        self.follow_admission()
        model = self.model
        assert not model.waiting() or model.unclaimed >= model.window or (model.quota and model.in_flight >= model.quota)

    # ---- workers work

    def deliver(self, name: Name, count: int, *, lane: bool) -> list[Delivery]:
        self.follow_admission()
        stage = name[0].split("-")[0]
        claims = self.do(self.worker(name, lane=lane).deliver(count))
        made = []
        for claim in claims:
            job = self.model.jobs[claim.job]
            assert (job.state, job.stage, job.lane, job.delivered_to) == ("ready", stage, lane, ""), "an entry that nobody should be given"
            job.delivered_to = name[0]
            delivery = Delivery(claim.job, job.entry, stage, name)
            self.claims[delivery] = claim
            made.append(delivery)
        return made

    def begin(self, delivery: Delivery, twice: bool) -> None:
        claim = self.claims[delivery]

        async def call() -> tuple[str, int]:
            (begun,) = await self.worker(delivery.worker).begin(claim)
            return begun.state, begun.attempt

        state, attempt = self.check(call, lambda: self.model.begin(delivery, claim.nonce), twice)
        if state == "ok":
            token = Token(delivery.job, delivery.entry, attempt, delivery.stage, delivery.worker)
            self.helds[token] = Held(claim.stream, claim.entry, claim.job, attempt)

    @precondition(lambda self: self.claimable())
    @rule(data=st.data(), number=few, count=few, twice=twice)
    def shift(self, data: st.DataObject, number: int, count: int, twice: bool) -> None:
        """A worker is given entries of a stage that has some, and gets somewhere with each of them, or dies on the way."""
        stage, is_lane = data.draw(st.sampled_from(self.claimable()))
        for delivery in self.deliver(self.current(f"{stage}-{number}"), count, lane=is_lane):
            self.step(data, delivery, twice)

    @precondition(lambda self: self.claimable())
    @rule(data=st.data(), twice=twice)
    def busy_shifts(self, data: st.DataObject, twice: bool) -> None:
        """Work is what fleets mostly do."""
        for _ in range(3):
            if self.claimable():
                self.shift(data, 1, 3, twice)

    def claimable(self) -> list[tuple[str, bool]]:
        """Stages, and whether it is the lane, that have entries for whoever asks."""
        return sorted({(job.stage, job.lane) for job in self.model.jobs.values() if job.state == "ready" and not job.delivered_to})

    def step(self, data: st.DataObject, delivery: Delivery, twice: bool) -> None:
        how_far = data.draw(st.sampled_from(["end", "end", "end", "begun", "begun", "delivered"]))
        if how_far == "delivered":
            return
        self.begin(delivery, twice)
        token = next((token for token in self.helds if token.job == delivery.job and token.entry == delivery.entry), None)
        if how_far == "begun" or token is None:
            return
        if delivery.stage == "eval":
            self.send_ends([token], 1.0, twice)
        else:
            self.send_hand_offs([token], data.draw(st.booleans()), twice)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), twice=twice)
    def begin_late(self, data: st.DataObject, twice: bool) -> None:
        """What was delivered some time ago, perhaps to a boot that is no more, perhaps begun already."""
        self.begin(data.draw(st.sampled_from(list(self.claims))), twice)

    @precondition(lambda self: self.helds)
    @rule(data=st.data(), lane=st.booleans(), twice=twice)
    def hand_off(self, data: st.DataObject, lane: bool, twice: bool) -> None:
        batch = self.a_batch(data)
        if batch[0].stage == "eval":
            return
        self.send_hand_offs(batch, lane, twice)

    def send_hand_offs(self, batch: list[Token], lane: bool, twice: bool) -> None:
        # a node's lane is asked for by who made something there: with its epoch of now, or one that is over
        epoch = f"e{max(1, self.epochs)}" if lane and batch[0].stage == "init" else ""
        held = [self.helds[token] for token in batch]
        self.check(
            lambda: self.worker(batch[0].worker).hand_off(*held, node=NODE if epoch else "", epoch=epoch),
            lambda: [self.model.hand_off(token, epoch) for token in batch],
            twice,
        )

    @precondition(lambda self: self.helds)
    @rule(data=st.data(), reward=st.sampled_from([0.0, 1.0, None]), twice=twice)
    def settle(self, data: st.DataObject, reward: float | None, twice: bool) -> None:
        self.send_ends(self.a_batch(data), reward, twice)

    def send_ends(self, batch: list[Token], reward: float | None, twice: bool) -> None:
        held = [self.helds[token] for token in batch]
        outcome = "infra_failure" if reward is None else "ok"
        self.check(
            lambda: self.worker(batch[0].worker).settle(*held, settlement=a_settlement(reward), body=b"body"),
            lambda: [self.model.settle(token, outcome) for token in batch],
            twice,
        )

    @precondition(lambda self: self.helds)
    @rule(data=st.data(), kind=st.sampled_from(["failed", "lost", "back", "dead"]), delayed=st.booleans(), twice=twice)
    def give_up(self, data: st.DataObject, kind: str, delayed: bool, twice: bool) -> None:
        batch = self.a_batch(data)
        held = [self.helds[token] for token in batch]
        self.check(
            lambda: self.worker(batch[0].worker).give_up(*held, kind=cast(GiveUpKind, kind), backoff_ms=60_000 if delayed else 0),
            lambda: [self.model.give_up(token, kind, delayed=delayed) for token in batch],
            twice,
        )

    @precondition(lambda self: self.helds)
    @rule(data=st.data(), twice=twice)
    def renew(self, data: st.DataObject, twice: bool) -> None:
        batch = self.a_batch(data)
        token, held = batch[0], [self.helds[one] for one in batch]

        def expected() -> tuple[bool, list[str]]:
            if not self.model.holds_name(token.worker):
                return False, ["0"] * len(batch)
            return True, [self.model.renew(token.worker, one) for one in batch]

        self.check(lambda: self.worker(token.worker).renew(*held), expected, twice)

    @precondition(lambda self: self.helds)
    @rule(data=st.data(), index=st.integers(0, 2), twice=twice)
    def journal(self, data: st.DataObject, index: int, twice: bool) -> None:
        token = self.a_token(data)
        turn = JournalTurn(token.job, token.attempt, index, b"turn")
        self.check(lambda: self.scripts.journal([turn], ttl_ms=TTL_MS), lambda: [self.model.journal(token, index)], twice)

    # ---- workers die

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), delayed=st.booleans(), twice=twice)
    def lease_runs_out(self, data: st.DataObject, delayed: bool, twice: bool) -> None:
        was_begun: bool = data.draw(st.booleans())
        if self.helds and was_begun:
            token = self.a_token(data)
            self.recover(token, self.helds[token], delayed, twice)
        else:
            delivery = data.draw(st.sampled_from(list(self.claims)))
            self.recover(delivery, self.claims[delivery], delayed, twice)

    def recover(self, known: Token | Delivery, entry: Held | Claim, delayed: bool, twice: bool) -> None:
        janitor = self.worker((f"{known.stage}-janitor", "boot1"))
        self.check(
            lambda: janitor.recover("idle", entry, backoff_ms=60_000 if delayed else 0),
            lambda: [self.model.recover(known, None, delayed=delayed)],
            twice,
        )

    @rule(stage=st.sampled_from(STAGES), number=few)
    def name_is_taken_over(self, stage: str, number: int) -> None:
        """The lock of a boot lapsed, and its successor has the name; the first one may still act."""
        consumer = f"{stage}-{number}"
        self.current(consumer)
        self.boots[consumer] += 1
        name = self.current(consumer)
        self.do(ask(self.client, "DEL", self.keys.worker(consumer)))
        self.model.names[consumer] = name[1]
        assert self.do(self.worker(name).take_name()) is None

    @rule(stage=st.sampled_from(STAGES), number=few, lane=st.booleans(), by_the_old_boot=st.booleans(), twice=twice)
    def successor_recovers(self, stage: str, number: int, lane: bool, by_the_old_boot: bool, twice: bool) -> None:
        consumer = f"{stage}-{number}"
        name = self.current(consumer)
        if by_the_old_boot and self.boots[consumer] > 1:
            name = (consumer, f"boot{self.boots[consumer] - 1}")
        lane = lane and stage == "run"
        worker = self.worker(name, lane=lane)
        claims = self.do(worker.own_pending())
        pending = {job.id for job in self.model.jobs.values() if job.delivered_to == consumer and job.stage == stage and job.lane == lane}
        assert {claim.job for claim in claims} == pending
        known = [Delivery(claim.job, self.model.jobs[claim.job].entry, stage, name) for claim in claims]
        if claims:
            self.check(
                lambda: worker.recover("restart", *claims),
                lambda: [self.model.recover(one, name, delayed=False) for one in known],
                twice,
            )

    @rule(twice=twice)
    def retries_are_due(self, twice: bool) -> None:
        key = self.keys.key("z:delay")
        for job in self.do(ask(self.client, "ZRANGE", key, 0, -1)):
            self.do(ask(self.client, "ZADD", key, 1, job))

        async def call() -> int:
            return (await self.scripts.promote())[0]

        self.check(call, self.model.promote, twice)

    # ---- somebody cancels

    @rule(data=st.data(), reason=st.sampled_from(["user", "redundant"]), twice=twice)
    def cancel_job(self, data: st.DataObject, reason: str, twice: bool) -> None:
        job = data.draw(st.sampled_from([*sorted(self.model.jobs), f"{RUN}.nobody.0"]))
        self.check(lambda: self.scripts.cancel("job", [job], reason), lambda: tally([self.model.cancel(job, reason)]), twice)

    @precondition(lambda self: any(unit.members for unit in self.units))
    @rule(data=st.data(), twice=twice)
    def cancel_group(self, data: st.DataObject, twice: bool) -> None:
        unit = data.draw(st.sampled_from([unit for unit in self.units if unit.members]))
        self.check(
            lambda: self.scripts.cancel("group", [unit.id], "redundant"),
            lambda: tally([self.model.cancel(job, "redundant") for job in jobs_of(unit)]),
            twice,
        )

    @precondition(lambda self: self.prompts > 3)
    @rule(most=st.integers(1, 4), really=st.sampled_from([False, False, False, True]))
    def cancel_run_and_connect_again(self, most: int, really: bool) -> None:
        if not really:
            return
        open_jobs = [job.id for job in self.model.jobs.values() if job.state != "done"]
        counts = self.do(self.scripts.cancel("run", [RUN], "user", most=most))
        words = [self.model.cancel(job, "user") for job in open_jobs]
        assert (counts["settled"], counts["running"]) == (words.count("settled"), words.count("running"))
        self.model.closed = True
        with pytest.raises(RunClosed):
            self.do(self.accept([a_unit(RUN, "refused")]))

        self.nonce = f"n{self.incarnation + 1}"
        self.incarnation = self.do(self.scripts.connect_run(RUN, nonce=self.nonce, ttl_s=86_400, quota=self.model.quota))
        self.model.closed = False

    @rule(data=st.data(), twice=twice)
    def deadlines_pass(self, data: st.DataObject, twice: bool) -> None:
        open_jobs = sorted(job.id for job in self.model.jobs.values() if job.state != "done")
        if not open_jobs:
            return
        late = data.draw(st.lists(st.sampled_from(open_jobs), min_size=1, max_size=3, unique=True))
        for job in late:
            self.do(ask(self.client, "ZADD", self.keys.key("z:deadline"), 1, job))
        words = [self.model.expire(job) for job in late]
        ended, marked = self.do(self.scripts.expire_deadlines())
        assert ended == words.count("settled")
        # a worker that does not listen is told again each few seconds, so more may be marked than are late just now
        assert marked >= words.count("running")
        if twice:
            assert self.do(self.scripts.expire_deadlines())[0] == 0

    # ---- nodes, streams, servers

    @rule(what=st.sampled_from(["epoch", "epoch", "sweep", "sweep", "leave", "stream", "reconcile", "kill"]), stage=st.sampled_from(STAGES))
    def machines(self, what: str, stage: str) -> None:
        """Nodes come and go, are swept; a stream is deleted; the server dies."""
        if what == "stream":
            self.stream_is_deleted(stage)
        else:
            {
                "epoch": self.node_begins_an_epoch,
                "leave": self.node_leaves,
                "sweep": self.lane_is_swept,
                "reconcile": self.reconcile_finds_nothing,
                "kill": self.server_is_killed,
            }[what]()

    def node_begins_an_epoch(self) -> None:
        self.epochs += 1
        self.model.node_epoch = f"e{self.epochs}"
        self.do(self.scripts.beat_node(NODE, self.model.node_epoch, live_ms=TTL_MS, reads_lane=True))

    def node_leaves(self) -> None:
        if not self.epochs:
            return
        self.model.node_epoch = ""
        self.do(self.scripts.beat_node(NODE, f"e{self.epochs}", live_ms=TTL_MS, reads_lane=True, leaving=True))

    def lane_is_swept(self) -> None:
        sent_back, _, _ = self.do(self.scripts.sweep_lane(f"s:run:@{NODE}", NODE))
        assert sent_back == self.model.sweep()

    def stream_is_deleted(self, stage: str) -> None:
        self.do(ask(self.client, "DEL", self.keys.key("s", stage)))
        assert self.do(self.scripts.reconcile(RUN, most=1000)) == ("0", self.model.lose_stream(stage))

    def reconcile_finds_nothing(self) -> None:
        assert self.do(self.scripts.reconcile(RUN, most=1000)) == ("0", 0)

    def server_is_killed(self) -> None:
        if self.restarts == MOST_RESTARTS:
            return
        self.restarts += 1
        self.server.restart()
        self.do(self.client.connection_pool.disconnect())

    # ---- results go

    @rule(data=st.data(), twice=twice)
    def ack(self, data: st.DataObject, twice: bool) -> None:
        if not self.units:
            return
        unit = data.draw(st.sampled_from(self.units))
        records = {row["job"]: row["entry"] for row in self.do(self.audit.results(RUN))}
        ended = all(self.model.jobs[job].state == "done" for job in jobs_of(unit))
        ack = [("", "group", unit.id)] if unit.members else [(records.get(unit.id, ""), "job", unit.id)]
        removed = self.do(self.scripts.ack(RUN, self.incarnation, cast(Any, ack)))
        assert removed == (len(jobs_of(unit)) if ended else 0)
        if twice:
            assert self.do(self.scripts.ack(RUN, self.incarnation, cast(Any, ack))) == 0
        if ended:
            if unit.members:  # accounting has taken it from here, which is another model's business
                self.do(ask(self.client, "ZREM", self.keys.closed, unit.id))
            self.units.remove(unit)
            self.model.ack(unit.id)

    # ---- what must hold after each step

    def follow_admission(self) -> None:
        """Admission is the server's to time; what it admits are the oldest waiting jobs, within window and quota."""
        admitted = 0
        waiting = self.model.waiting()
        states = [found["st"] for found in self.do(self.audit.jobs([job.id for job in waiting])).values()]
        for job, state in zip(waiting, states, strict=True):
            if state == "waiting":
                break
            self.model.admit(job)
            admitted += 1
        assert states[admitted:] == ["waiting"] * (len(waiting) - admitted), "admitted out of order"
        if admitted:
            assert self.model.unclaimed <= self.model.window
        if self.model.quota:
            assert self.model.in_flight <= self.model.quota

    @invariant()
    def redis_and_the_reference_agree(self) -> None:
        self.follow_admission()
        hashes = self.do(self.audit.jobs(list(self.model.jobs)))
        for job in self.model.jobs.values():
            found = hashes[job.id]
            seen = (found["st"], found["stage"], found["att"], found["failed"], found["lost"], found.get("out", ""), found.get("cx", ""))
            expected = (job.state, job.stage, str(job.attempt), str(job.failed), str(job.lost), job.outcome, job.cancelled)
            assert seen == expected, job.id
        assert self.do(self.audit.faults(RUN, self.units)) == []

    def work_off(self) -> None:
        """Everything that is open ends: each job has its one record, and the counters are back at nothing."""
        self.node_leaves() if self.model.node_epoch else None
        for _ in range(200):
            if all(job.state == "done" for job in self.model.jobs.values()):
                break
            self.retries_are_due(False)
            self.lane_is_swept()
            self.admit()
            for job in [job for job in self.model.jobs.values() if job.state == "running"]:
                token = next(token for token in self.helds if token.job == job.id and token.attempt == job.attempt)
                self.send_ends([token], 1.0, False)
            for job in [job for job in self.model.jobs.values() if job.state == "ready" and job.delivered_to]:
                delivery = next(one for one in self.claims if one.job == job.id and one.entry == job.entry)
                self.recover(delivery, self.claims[delivery], False, False)
            self.redis_and_the_reference_agree()
            for stage in STAGES:
                for delivery in self.deliver(self.current(f"{stage}-last"), 100, lane=False):
                    self.begin(delivery, False)
        assert self.do(self.audit.all_ended(RUN, self.units)) == []
        assert self.do(self.audit.counter(RUN, "inflight")) == 0
        assert self.do(self.audit.reserved_bytes()) == 0


def tally(words: list[str]) -> dict[str, int]:
    return {word: words.count(word) for word in ("settled", "running", "done", "unknown")}


@pytest.mark.timeout(600)
def test_redis_and_the_reference_agree_after_each_step(server_kind: ServerKind) -> None:
    histories = 60 if server_kind == found_servers()[0] else 20  # the scripts are the same, only servers differ
    with PrivateServer(server_kind, persistence="always") as private:

        class OnThisServer(QueueMachine):
            server = private

        run_state_machine_as_test(OnThisServer, settings=settings(max_examples=histories, stateful_step_count=50, print_blob=True))
