"""A fleet by virtual clock: what the rules of the ledger do to the data that is trained on, and what it costs.

One slot runs one rollout; a unit of time is a unit of tokens. The rollouts are those of `ops.bench.dapo_mix`, which `bench dapo` runs for
real. Work waits in one queue in the order it was launched, as it does in the queue of a run.

A fleet that begins with nothing reaches its first steps with the rollouts that are over first, and one that is looked at in the end has
the longest still in flight. So the figures are of a window between two steps: what was in flight at its beginning stands for what is at its
end.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Self

from ops.bench.dapo_mix import Dealer, Mix, TrainedOn
from pipeline.messages import Outcome
from pipeline.supervisor.step_spec import StepSpec
from pipeline.supervisor.views import Member
from tests.model.hands import act, decide
from tests.model.reference_ledger import ReferenceLedger

RESERVE = 64
"""Prompts a trainer keeps pushed ahead."""
WARM_STEPS = 12
"""Steps before the window: more than any group is in flight for."""


@dataclass
class Seen(TrainedOn):
    """What came out of a window, or of several added up."""

    steps: int = 0
    time: float = 0.0

    @property
    def time_a_step(self) -> float:
        return self.time / self.steps

    def __iadd__(self, other: Seen) -> Self:
        self.steps += other.steps
        self.time += other.time
        self.units += other.units
        self.lengths += other.lengths
        self.slow += other.slow
        return self


class SimulatedFleet:
    """Runs steps, one after the other, `ahead` of them open beyond the first."""

    def __init__(self, mix: Mix, spec: StepSpec, *, slots: int = 128, ahead: int = 0) -> None:
        self.mix = mix
        self.dealer = Dealer(mix)
        self.spec = spec
        self.slots = slots
        self.ahead = ahead
        self.ledger = ReferenceLedger()
        self.waiting: deque[tuple[str, int]] = deque()
        self.running: dict[str, dict[int, float]] = {}
        """Group -> member -> when it began."""
        self.events: list[tuple[float, str, int]] = []
        self.busy = 0
        self.now = 0.0
        self.reached = 0
        self.tokens = 0.0
        """Of rollouts that ended."""
        self.seen = Seen()

    def run(self, steps: int) -> Seen:
        """Until `steps` steps were reached in the window; the trainer opens the next one as soon as one is."""
        for index in range(1 + self.ahead):
            self.ledger.open_step(index, self.spec)
        self._supervise()
        began, spent = 0.0, 0.0
        while self.reached < WARM_STEPS + steps:
            was = self.reached
            self._go_on()
            if was < WARM_STEPS <= self.reached:
                self.seen, began, spent = Seen(), self.now, self._spent()
        self.seen.time, self.seen.units = self.now - began, self._spent() - spent
        return self.seen

    def _go_on(self) -> None:
        """Until the next rollout ends."""
        self._start_waiting()
        self.now, group, index = heapq.heappop(self.events)
        began = self.running.get(group, {}).pop(index, None)
        if began is None:
            return  # given up meanwhile
        self.busy -= 1
        self.tokens += self.now - began
        reward = self.mix.kind(self._prompt(group)).reward(index)
        self.ledger.now_ms = int(self.now * 1000)
        self.ledger.end_member(group, index, Member(outcome=Outcome.OK, reward=reward, components={}, sampled_tokens=1))
        if not self.ledger.groups[group].is_open:
            self._supervise()

    def _spent(self) -> float:
        """Tokens sampled until now."""
        return self.tokens + sum(self.now - began for members in self.running.values() for began in members.values())

    def _supervise(self) -> None:
        while True:
            if len(self.ledger.reserve) < RESERVE:
                self.ledger.push([f"p{len(self.ledger.marks) + i}" for i in range(RESERVE)])
            decision = decide(self.ledger)
            if decision is None:
                return
            for name in act(self.ledger, decision):
                group = self.ledger.groups[name]
                if group.given_up:
                    self._stop(name)
                else:
                    self.waiting += [(name, index) for index in range(self.spec.n)]
            self._count_reached()

    def _count_reached(self) -> None:
        for step in list(self.ledger.steps.values()):
            if step.reached and step.index == self.reached:
                self.reached += 1
                self.seen.steps += 1
                for name in step.joined:
                    prompt = self._prompt(name)
                    self.seen.add(self.mix.kind(prompt), self.dealer.base_lengths(name, prompt))
                self.ledger.open_step(step.index + 1 + self.ahead, self.spec)

    def _stop(self, name: str) -> None:
        running = self.running.pop(name, {})
        self.tokens += sum(self.now - began for began in running.values())
        self.busy -= len(running)
        for index in range(self.spec.n):
            self.ledger.end_member(name, index, Member(outcome=Outcome.CANCELLED, reward=None, components={}, reason="redundant"))

    def _start_waiting(self) -> None:
        while self.waiting and self.busy < self.slots:
            name, index = self.waiting.popleft()
            group = self.ledger.groups[name]
            if group.given_up:
                continue
            group.begun += 1
            self.busy += 1
            self.running.setdefault(name, {})[index] = self.now
            heapq.heappush(self.events, (self.now + self.dealer.length(name, self._prompt(name), index), name, index))

    def _prompt(self, group: str) -> int:
        return int(self.ledger.groups[group].prompt[1:])


def generate_filter_repeat(mix: Mix, *, batch: int, steps: int, target: int = 8, n: int = 8, slots: int = 128) -> Seen:
    """What trainers do without a supervisor: run a batch of groups to its end, filter, repeat until the step is full; the rest is waste."""
    seen, dealer = Seen(steps=steps), Dealer(mix)
    prompt = 0
    for _ in range(steps):
        accepted: list[int] = []
        while len(accepted) < target:
            free = [seen.time] * slots
            ends = []
            drawn = range(prompt, prompt + batch)
            for number, member in ((number, member) for number in drawn for member in range(n)):
                length = dealer.length(str(number), number, member)
                ends.append(heapq.heappop(free) + length)
                heapq.heappush(free, ends[-1])
                seen.units += length
            seen.time = max(ends)
            accepted += [number for number in drawn if mix.kind(number).is_informative]
            prompt += batch
        for number in accepted[:target]:
            seen.add(mix.kind(number), dealer.base_lengths(str(number), number))
    return seen
