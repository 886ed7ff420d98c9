"""The ledger in Redis against the reference model: the same random history, the same state after each event.

What is compared is all that a decision looks at and all that a trainer sees: marks, reserve in order, groups in flight, closed and parked
ones, steps, counters, verdicts, records.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from pipeline.keys import Keys
from pipeline.messages import Outcome, Settlement
from pipeline.redis_client import AsyncClient, ask
from pipeline.scripts import Scripts
from pipeline.scripts.step_calls import Moved, StepScripts
from pipeline.supervisor.actions import Launch, Reach
from pipeline.supervisor.drain import Drain
from pipeline.supervisor.loading import LedgerReader
from pipeline.supervisor.step_spec import CancelRule, StepSpec
from pipeline.supervisor.views import Member
from pipeline.testing import a_settlement
from tests.integration.supervisor.fleet import RUN, Ending, Fleet
from tests.model import hands
from tests.model.reference_ledger import ReferenceLedger

EVENTS = 70


@dataclass
class Twin:
    """One run in Redis and in the reference model."""

    fleet: Fleet
    random: random.Random
    spec: StepSpec
    model: ReferenceLedger = field(default_factory=ReferenceLedger)
    pushed: int = 0
    launched: set[str] = field(default_factory=set)
    """Groups whose launching time is Redis's."""
    closed: set[str] = field(default_factory=set)
    """Groups whose closing time is Redis's."""

    async def push(self) -> None:
        start = max(0, self.pushed - self.random.choice([0, 0, 2]))
        ids = [f"p{i}" for i in range(start, start + self.random.randint(1, 6))]
        self.pushed = max(self.pushed, start + len(ids))
        assert await self.fleet.push(*ids) == self.model.push(ids)

    async def end_prompts(self) -> None:
        await self.fleet.steps.end_prompts(RUN, self.fleet.incarnation)
        self.model.end_prompts()

    async def open_next(self) -> None:
        index = len(self.model.steps)
        await self.fleet.open(index, self.spec)
        self.model.open_step(index, self.spec)

    async def come_back(self) -> None:
        await self.fleet.connect(nonce=f"again{self.model.incarnation}")
        self.model.connect()
        for step in list(self.model.steps.values()):
            await self.fleet.open(step.index, step.spec)
            self.model.open_step(step.index, step.spec)

    async def work(self) -> None:
        before = set(self.fleet.held)
        await self.fleet.work()
        for job in set(self.fleet.held) - before:
            self.model.groups[job.rpartition(".")[0]].begun += 1

    async def end_some(self) -> None:
        groups = self.fleet.groups()
        if not groups:
            return
        await self.end_group(self.random.choice(groups), self.random.choice(["mixed", "mixed", "right", "broken", "one"]))

    async def end_group(self, group: str, kind: str) -> None:
        members = [self.random.randrange(self.spec.n)] if kind == "one" else list(range(self.spec.n))
        for index in members:
            if f"{group}.{index}" not in self.fleet.held:
                continue
            settlement = a_settlement(None) if kind == "broken" else a_settlement(1.0 if kind == "right" else float(index % 2))
            await self.fleet.end(group, always(settlement), [index])
            self.model.end_member(group, index, as_member(settlement, given_up=self.model.groups[group].given_up))
        await self.take_times()

    async def supervise(self) -> None:
        """Rounds until nothing changes; what a round gives up has closed by the next one."""
        given_up: list[str] | None = None
        while given_up is None or given_up:
            await self.fleet.supervise()
            given_up = self.model.give_up_older()
            while (decision := hands.decide(self.model)) is not None:
                before = self.model.revision
                names = hands.act(self.model, decision)
                given_up += names if isinstance(decision.action, Reach) else []
                await self.take_times()
                if self.model.revision == before:
                    break
            self.note_given_up(given_up)
            await self.take_times()

    async def act_once(self) -> None:
        """A supervisor that dies after one action: the same on both sides, and refused on an older state."""
        decision = hands.decide(self.model)
        if decision is None:
            return
        steps, window = self.fleet.steps, 256
        stale = hands.Decision(type(decision.basis)(RUN, decision.basis.incarnation, decision.basis.revision - 1), decision.action)
        for attempt in (stale, decision):
            call = (
                steps.reach_step(attempt.basis, attempt.action)
                if isinstance(attempt.action, Reach)
                else steps.launch(attempt.basis, attempt.action, window=window)
                if isinstance(attempt.action, Launch)
                else steps.account_groups(attempt.basis, attempt.action)
            )
            if attempt is stale:
                with pytest.raises(Moved):
                    await call
            else:
                await call
        names = hands.act(self.model, decision)
        if isinstance(decision.action, Reach):
            self.note_given_up(names)
        await self.take_times()

    def note_given_up(self, names: list[str]) -> None:
        """Members that no worker holds end at once; the others when their worker says so."""
        for name in names:
            for index in range(self.spec.n):
                if f"{name}.{index}" not in self.fleet.held:
                    self.model.end_member(name, index, Member(outcome=Outcome.CANCELLED, reward=None, components={}))

    async def take_times(self) -> None:
        """Redis's clock is the clock: groups are ordered by when it says they were launched and closed."""
        keys, client = self.fleet.scripts.keys, self.fleet.scripts.run_script.client
        for group in self.model.groups.values():
            if group.id not in self.launched:
                self.launched.add(group.id)
                found = await ask(client, "HGET", keys.group(group.id), "t")
                group.launched_ms = int(found)
            if not group.is_open and group.id not in self.closed:
                found = await ask(client, "HGET", keys.group(group.id), "closed")
                if found is not None:
                    self.closed.add(group.id)
                    group.closed_ms = int(found)

    async def compare(self) -> None:
        keys, model, fleet = self.fleet.scripts.keys, self.model, self.fleet
        assert await fleet.hash(keys.prompt_marks(RUN)) == {name: mark.text() for name, mark in model.marks.items()}
        assert await fleet.members(keys.reserve(RUN)) == sorted(model.reserve, key=lambda name: model.marks[name].place)
        assert set(await fleet.members(keys.flying(RUN))) == model.flying
        assert set(await fleet.members(keys.parked(RUN))) == model.parked
        assert set(await fleet.members(keys.closed)) == model.closed
        head = await fleet.hash(keys.run(RUN))
        assert (int(head["rev"]), int(head["inc"])) == (model.revision, model.incarnation)
        assert (int(head.get("rate.judged", 0)), int(head.get("rate.informative", 0))) == (model.judged, model.informative)
        assert ("need" in head, head.get("ended", "0")) == (model.need, str(model.ended))
        for step in model.steps.values():
            found = await fleet.hash(keys.step(RUN, step.index))
            assert (found["st"] == "reached", int(found["acc"])) == (step.reached, len(step.joined))
        for group in model.groups.values():
            found = await fleet.hash(keys.group(group.id))
            assert (found.get("verdict"), found.get("cx", "")) == (group.verdict and group.verdict.value, group.given_up), group.id
        assert [record["grp"] for record in await fleet.records("group")] == model.records
        records = {int(record["k"]): record for record in await fleet.records("step")}
        assert {k: r["groups"].split() for k, r in records.items()} == {s.index: s.joined for s in model.steps.values() if s.reached}
        model.check()


def always(settlement: Settlement) -> Ending:
    return lambda _group, _member: settlement


def as_member(settlement: Settlement, *, given_up: str) -> Member:
    if given_up:
        return Member(outcome=Outcome.CANCELLED, reward=None, components={}, reason=given_up)
    return Member(outcome=settlement.outcome, reward=settlement.reward, components=settlement.components, sampled_tokens=3, total_tokens=8)


@pytest.mark.parametrize("seed", range(6))
async def test_redis_and_the_model_agree_after_each_event(seed: int, client: AsyncClient, keys: Keys, scripts: Scripts) -> None:
    chance = random.Random(seed)
    spec = StepSpec(target=2, n=chance.choice([2, 4]), over=1.5, cancel=chance.choice(list(CancelRule)), max_redraws=1)
    steps, reader = StepScripts(client, keys), LedgerReader(client, keys)
    twin = Twin(Fleet(scripts, steps, Drain(reader, steps, window=256), reader), chance, spec)
    await twin.fleet.connect()
    await twin.push()
    await twin.open_next()

    happenings = [twin.push, twin.open_next, twin.work, twin.end_some, twin.supervise, twin.act_once, twin.end_prompts, twin.come_back]
    weights = [4, 3, 6, 12, 5, 6, 1, 1]
    for at in range(EVENTS):
        [happening] = chance.choices(happenings, weights)
        await happening()
        try:
            await twin.compare()
        except AssertionError as error:
            raise AssertionError(f"after event {at}, {happening.__name__}: {error}") from error

    await twin.open_next()
    await twin.fleet.push_many(40)
    twin.model.push([f"e0-{i}" for i in range(40)])
    while not all(step.reached for step in twin.model.steps.values()):
        await twin.supervise()
        await twin.work()
        for group in twin.fleet.groups()[:8]:
            await twin.end_group(group, "mixed")
    await twin.compare()
