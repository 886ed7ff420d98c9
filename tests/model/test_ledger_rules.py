"""The rules of the ledger against the reference model, under random interleavings.

Supervisors that look, wait, and act late; supervisors that die after any action; members that end in any order, twice, or long after their
group was given up; trainers that push twice, come back, or run out of prompts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from zlib import crc32

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipeline.messages import Outcome
from pipeline.supervisor.actions import Launch, Verdict
from pipeline.supervisor.replenishment import LOWEST_RATE
from pipeline.supervisor.step_spec import CancelRule, OnStale, StepSpec, Surplus
from pipeline.supervisor.views import Member
from tests.model.hands import Decision, Moved, act, decide, supervise
from tests.model.reference_ledger import ReferenceLedger

SIZES = (1, 2, 4)


def member(outcome: Outcome, reward: float | None, tokens: int = 1) -> Member:
    return Member(outcome=outcome, reward=reward, components={}, reason="redundant", sampled_tokens=tokens, total_tokens=tokens)


ENDINGS = st.sampled_from(
    [
        member(Outcome.OK, 1.0),
        member(Outcome.OK, 0.0),
        member(Outcome.OK, math.nan),
        member(Outcome.OK, None),
        member(Outcome.MODEL_FAILURE, 0.0),
        member(Outcome.MODEL_FAILURE, None),
        member(Outcome.INFRA_FAILURE, None),
        member(Outcome.CANCELLED, None),
        member(Outcome.EXPIRED, None),
        replace(member(Outcome.CANCELLED, None), reason="stale"),
    ]
)


class LedgerMachine(RuleBasedStateMachine):
    """One run, any number of supervisors."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = ReferenceLedger()
        self.pushed = 0
        self.late: list[Decision] = []

    @initialize(
        n=st.sampled_from(SIZES),
        rule_=st.sampled_from(CancelRule),
        over=st.sampled_from([1.0, 1.5, 2.0]),
        on_stale=st.sampled_from(OnStale),
        age=st.integers(0, 2),
        surplus=st.sampled_from(Surplus),
        version=st.sampled_from([None, 4, 4, 4]),
        prompts=st.integers(0, 12),
    )
    def begin(
        self, n: int, rule_: CancelRule, over: float, on_stale: OnStale, age: int, surplus: Surplus, version: int | None, prompts: int
    ) -> None:
        self.spec = StepSpec(target=2, n=n, over=over, cancel=rule_, max_redraws=1, on_stale=on_stale, max_staleness=age, surplus=surplus)
        if version is not None:
            self.ledger.set_version(version)
        if prompts:
            self.push(prompts, again=False)
        self.ledger.open_step(0, self.spec)

    @rule(count=st.integers(1, 12), again=st.booleans())
    def push(self, count: int, again: bool) -> None:
        start = max(0, self.pushed - 3) if again else self.pushed
        fresh = self.ledger.push([f"p{i}" for i in range(start, start + count)])
        self.pushed = max(self.pushed, start + count)
        assert len(fresh) == count

    @rule()
    def end_prompts(self) -> None:
        self.ledger.end_prompts()

    @rule(groups=st.integers(1, 4))
    def open_next(self, groups: int) -> None:
        spec = replace(self.spec, target=groups)
        if len(self.ledger.steps) < 12:
            self.ledger.open_step(len(self.ledger.steps), spec)

    @rule(rise=st.integers(-1, 2))
    def set_version(self, rise: int) -> None:
        number = max(0, (self.ledger.version or 0) + rise)
        assert self.ledger.set_version(number) == (rise >= 0 or self.ledger.version is None or number == self.ledger.version)

    def label(self, back: int) -> str:
        """A version that may have sampled something by now; empty = no server said."""
        version = self.ledger.version
        return "" if version is None or back > version else f"{self.ledger.incarnation}.{version - back}"

    @precondition(lambda self: self.ledger.incarnation < 3)
    @rule()
    def come_back(self) -> None:
        """A trainer connects again and opens the steps that are not reached."""
        self.ledger.connect()
        for step in list(self.ledger.steps.values()):
            self.ledger.open_step(step.index, step.spec)

    @precondition(lambda self: self.ledger.groups)
    @rule(data=st.data(), ending=ENDINGS, back=st.integers(0, 4))
    def end_member(self, data: st.DataObject, ending: Member, back: int) -> None:
        """Also of a group that was given up, or a second time: late and duplicate ends."""
        name = data.draw(st.sampled_from(sorted(self.ledger.groups)))
        index = data.draw(st.integers(0, self.ledger.groups[name].spec.n - 1))
        self.ledger.now_ms += 1
        self.ledger.end_member(name, index, replace(ending, first_version=self.label(back)))

    @precondition(lambda self: self.ledger.flying)
    @rule(data=st.data())
    def pass_the_deadline_of_a_group(self, data: st.DataObject) -> None:
        """What has not ended of it ends as expired; what has stands."""
        group = self.ledger.groups[data.draw(st.sampled_from(sorted(self.ledger.flying)))]
        self.ledger.now_ms += 1
        for index in set(range(group.spec.n)) - set(group.members):
            self.ledger.end_member(group.id, index, member(Outcome.EXPIRED, None))

    @precondition(lambda self: self.ledger.flying)
    @rule(data=st.data(), back=st.integers(0, 4))
    def end_group(self, data: st.DataObject, back: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.ledger.flying)))
        kind = data.draw(st.sampled_from(["mixed", "right", "broken"]))
        self.ledger.now_ms += 1
        for index in range(self.ledger.groups[name].spec.n):
            reward = float(index % 2) if kind == "mixed" else 1.0
            ended = member(Outcome.INFRA_FAILURE, None) if kind == "broken" else member(Outcome.OK, reward)
            self.ledger.end_member(name, index, replace(ended, first_version=self.label(back if index else 0)))

    @rule()
    def supervise(self) -> None:
        supervise(self.ledger)
        wanted = sum(step.wanting for step in self.ledger.view().steps)
        assert len(self.ledger.flying) >= wanted or not self.ledger.reserve, "fewer in flight than are wanted"

    @rule()
    def act_once_and_die(self) -> None:
        decision = decide(self.ledger)
        if decision:
            act(self.ledger, decision)

    @rule()
    def look_and_wait(self) -> None:
        """A second supervisor decides, and acts later."""
        decision = decide(self.ledger)
        if decision:
            self.late.append(decision)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def act_late(self, data: st.DataObject) -> None:
        decision = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
        fresh = decision.basis == self.ledger.view().basis
        if fresh:
            act(self.ledger, decision)
        else:
            with pytest.raises(Moved):
                act(self.ledger, decision)

    @invariant()
    def holds(self) -> None:
        self.ledger.check()

    @invariant()
    def in_flight_is_bounded(self) -> None:
        view = self.ledger.view()
        decision = decide(self.ledger)
        if decision and isinstance(decision.action, Launch):
            wanted = sum(step.wanting for step in view.steps if step.index <= decision.action.step)
            assert wanted <= decision.action.bound <= math.ceil(wanted * self.spec.over / LOWEST_RATE)

    def teardown(self) -> None:
        """Whatever happened, the run can be brought to its end, and then every prompt is accounted for."""
        if not hasattr(self, "spec"):
            return
        self.ledger.connect()
        self.ledger.set_version(4)
        for step in list(self.ledger.steps.values()):
            self.ledger.open_step(step.index, step.spec)
        self.ledger.end_prompts()
        for _ in range(10_000):
            supervise(self.ledger)
            self.ledger.check()
            while self.ledger.untrained():  # each step that is reached is trained, and brings its update
                self.ledger.set_version((self.ledger.version or 0) + 1)
            open_groups = [group for group in self.ledger.groups.values() if group.is_open]
            if not open_groups and not self.ledger.closed:
                break
            for group in open_groups:
                for index in range(group.spec.n):
                    # some are old by their first member, and another draw of the same prompt is not
                    label = self.label(0 if index else crc32(group.id.encode()) % 4)
                    self.ledger.end_member(group.id, index, replace(member(Outcome.OK, float(index % 2)), first_version=label))
        assert all(step.reached for step in self.ledger.steps.values())
        assert not self.ledger.flying
        assert all(group.verdict is not None or group.is_parked for group in self.ledger.groups.values())
        for mark in self.ledger.marks.values():
            assert mark.redraws <= self.spec.max_redraws
        dead = [group for group in self.ledger.groups.values() if group.verdict is Verdict.DEAD]
        assert all(self.ledger.marks[group.prompt].state in ("dead", "reserve") for group in dead)


LedgerMachine.TestCase.settings = settings(max_examples=250, stateful_step_count=50, deadline=None)
TestLedger = pytest.mark.timeout(180)(LedgerMachine.TestCase)  # 10 s, and more than a minute on a machine under load
