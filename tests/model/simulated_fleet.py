"""A fleet by virtual clock: what the rules of the ledger do to the data that is trained on, and what it costs.

One slot runs one rollout; a unit of time is a unit of tokens. 40 % of prompts are all right, 25 % all wrong, the others mixed; only mixed
groups are informative. The length of a rollout is lognormal(0, 0.8), times `slow_factor` for the share `slow` of prompts. Work waits in one
queue in the order it was launched, as it does in the queue of a run.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, field

from pipeline.messages import Outcome
from pipeline.supervisor.step_spec import StepSpec
from pipeline.supervisor.views import Member
from tests.model.hands import act, decide
from tests.model.reference_ledger import ReferenceLedger

RIGHT, WRONG, SIGMA = 0.40, 0.25, 0.8
TRUE_MEAN = math.exp(SIGMA**2 / 2)
LONGEST_5 = math.exp(SIGMA * 1.645)
"""Length that one in twenty exceeds."""
ORACLE = 8 * TRUE_MEAN / (1 - RIGHT - WRONG)
"""Tokens of each accepted group of 8 when nothing is wasted but the filtered ones."""
RESERVE = 64
"""Prompts a trainer keeps pushed ahead."""


@dataclass
class Seen:
    """What came out of a simulation."""

    steps: int = 0
    time: float = 0.0
    tokens: float = 0.0
    lengths: list[float] = field(default_factory=list)
    """Of trained members, without the slow factor."""
    slow: list[bool] = field(default_factory=list)
    """Of accepted groups."""

    @property
    def mean_length(self) -> float:
        """Of trained members, as a share of the true mean."""
        return sum(self.lengths) / len(self.lengths) / TRUE_MEAN

    @property
    def longest(self) -> float:
        """Share of the longest 5 % among trained members, 1 = all of them."""
        return sum(length > LONGEST_5 for length in self.lengths) / len(self.lengths) / 0.05

    @property
    def slow_share(self) -> float:
        return sum(self.slow) / len(self.slow)

    @property
    def tokens_a_group(self) -> float:
        return self.tokens / len(self.slow)


class SimulatedFleet:
    """Runs steps, one after the other, `ahead` of them open beyond the first."""

    def __init__(
        self, seed: int, spec: StepSpec, *, slots: int = 128, ahead: int = 0, slow: float = 0.0, slow_factor: float = 10.0
    ) -> None:
        self.random = random.Random(seed)
        self.spec = spec
        self.slots = slots
        self.ahead = ahead
        self.slow_factor = slow_factor
        self.slow = slow
        self.ledger = ReferenceLedger()
        self.kinds: dict[str, tuple[str, bool]] = {}
        self.waiting: deque[tuple[str, int]] = deque()
        self.running: dict[str, dict[int, float]] = {}
        """Group -> member -> when it began."""
        self.lengths: dict[str, dict[int, float]] = {}
        self.events: list[tuple[float, str, int]] = []
        self.busy = 0
        self.now = 0.0
        self.seen = Seen()

    def run(self, steps: int) -> Seen:
        """Until `steps` steps were reached; the trainer opens the next one as soon as one is."""
        for index in range(1 + self.ahead):
            self.ledger.open_step(index, self.spec)
        self._supervise()
        while self.seen.steps < steps:
            self._start_waiting()
            self.now, group, index = heapq.heappop(self.events)
            began = self.running.get(group, {}).pop(index, None)
            if began is None:
                continue  # given up meanwhile
            self.busy -= 1
            self._end(group, index, self.now - began)
        self.seen.time = self.now
        return self.seen

    def _end(self, group: str, index: int, length: float) -> None:
        kind, is_slow = self._kind(group)
        self.seen.tokens += length
        self.lengths.setdefault(group, {})[index] = length / (self.slow_factor if is_slow else 1.0)
        reward = {"right": 1.0, "wrong": 0.0, "mixed": float(index % 2)}[kind]
        self.ledger.now_ms = int(self.now * 1000)
        self.ledger.end_member(group, index, Member(outcome=Outcome.OK, reward=reward, components={}, sampled_tokens=1))
        if not self.ledger.groups[group].is_open:
            self._supervise()

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
            if step.reached and step.index == self.seen.steps:
                self.seen.steps += 1
                for name in step.joined:
                    self.seen.slow.append(self._kind(name)[1])
                    self.seen.lengths += self.lengths[name].values()
                self.ledger.open_step(step.index + 1 + self.ahead, self.spec)

    def _stop(self, name: str) -> None:
        running = self.running.pop(name, {})
        self.seen.tokens += sum(self.now - began for began in running.values())
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
            length = self.random.lognormvariate(0, SIGMA) * (self.slow_factor if self._kind(name)[1] else 1.0)
            heapq.heappush(self.events, (self.now + length, name, index))

    def _kind(self, group: str) -> tuple[str, bool]:
        prompt = self.ledger.groups[group].prompt
        if prompt not in self.kinds:
            at = self.random.random()
            kind = "right" if at < RIGHT else "wrong" if at < RIGHT + WRONG else "mixed"
            self.kinds[prompt] = kind, self.random.random() < self.slow
        return self.kinds[prompt]
