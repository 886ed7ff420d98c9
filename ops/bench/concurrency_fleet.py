"""RUN processes in front of modelled engines: jobs of several turns in groups, claimed from one queue, by a virtual clock.

Which jobs act is decided by the product (`workers.stages.concurrency`); what is simulated is time, the engines and the tools.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ops.bench.concurrency_engine import Engine, EngineCall
from workers.stages.concurrency import ConcurrencyLimit, Everybody, Places

TICK_S = 0.1
LOOK_TICKS = 10
"""Servers are looked at each second."""


@dataclass(frozen=True, slots=True)
class SimTurn:
    """What one turn of a job takes."""

    tokens: float
    tool_s: float
    answer_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the jobs are like; lengths are lognormal around these medians."""

    groups: int
    n: int = 8
    prompt_tokens: float = 800
    turns: tuple[int, int] = (2, 9)
    turn_tokens: float = 300
    answer_tokens: float = 200
    tool_s: float = 3.0
    longer_from: int = 10**9
    """From this group on turns have three times as many tokens."""
    spread: float = 1.0
    """0 = all jobs take the same but for their turns."""
    seed: int = 0


@dataclass(slots=True, eq=False)
class SimJob:
    """One job on its way."""

    number: int
    group: int
    context: float
    turns: deque[SimTurn]
    process: SimProcess | None = None
    server: Engine | None = None
    call: EngineCall | None = None
    call_began_s: float = 0.0
    is_shed: bool = False
    """Its call was aborted: the turn goes on later."""


@dataclass(slots=True, eq=False)
class SimProcess:
    """One RUN process.

    `limit` None = a fixed number of slots.
    """

    slots: int
    limit: ConcurrencyLimit | None = None
    aborts: bool = False
    """Whether calls beyond the limit are aborted under hard pressure."""
    a_call: bool = False
    """Whether places are given for a call instead of for a job."""
    from_s: float = 0.0
    phase: int = 0
    places: Places[SimJob] = field(default_factory=lambda: Places(1))
    call_s: float = 10.0
    history: list[int] = field(default_factory=list)
    """Limit after each look."""

    def __post_init__(self) -> None:
        self.places.set_limit(self.slots if self.limit is None else self.limit.places)

    @property
    def room(self) -> int:
        """Jobs that may be claimed now."""
        return min(self.slots, self.places.limit) - len(self.places)


@dataclass(slots=True)
class Outcome:
    """What a simulation gave."""

    makespan_s: float
    tokens_s: float
    preemptions: int
    prefilled: float
    """Tokens computed that were not sampled."""
    group_s: float
    """Mean time from a group's first claim to its last end."""
    held: float
    """Mean share of the claimed jobs that had no place."""
    ended: int


class SimFleet:
    """The whole of it."""

    def __init__(self, engines: Sequence[Engine], processes: Sequence[SimProcess], work: Work) -> None:
        self.engines = [*engines]
        self.processes = [*processes]
        self.now_s = 0.0
        self.news = True
        """Off: nobody looks at the servers, facts only age."""
        self._gone: list[Engine] = []
        self._by_call: dict[int, SimJob] = {}
        self._queue = deque(_jobs(work))
        self._jobs_left = self._total = len(self._queue)
        self._tools: list[tuple[float, SimJob]] = []
        self._began: dict[int, float] = {}
        self._left: dict[int, int] = dict.fromkeys(range(work.groups), work.n)
        self._group_s: list[float] = []
        self._held: list[float] = []
        self._seen_s = 0.0
        self._loads = [engine.load(0.0) for engine in self.engines]

    def run(self, until_s: float, each_look: Callable[[SimFleet], None] | None = None) -> Outcome:
        """Until all jobs have ended, or the time is over."""
        tick = 0
        while self._jobs_left and self.now_s < until_s:
            if tick % LOOK_TICKS == 0:
                if each_look is not None:
                    each_look(self)
                if self.news:
                    self._seen_s, self._loads = self.now_s, [engine.load(0.0) for engine in self.engines]
            for process in self.processes:
                if self.now_s >= process.from_s:
                    if tick % LOOK_TICKS == process.phase % LOOK_TICKS:
                        self._look(process)
                    self._claim(process)
            for engine in self.engines:
                for call in engine.tick(TICK_S):
                    self._called(self._by_call.pop(id(call)))
            self._tools_end()
            tick += 1
            self.now_s = tick * TICK_S
        sampled = sum(engine.sampled for engine in [*self.engines, *self._gone])
        return Outcome(
            makespan_s=self.now_s,
            tokens_s=sampled / self.now_s,
            preemptions=sum(engine.preemptions for engine in [*self.engines, *self._gone]),
            prefilled=sum(engine.prefilled for engine in [*self.engines, *self._gone]),
            group_s=statistics.fmean(self._group_s) if self._group_s else 0.0,
            held=statistics.fmean(self._held) if self._held else 0.0,
            ended=self._total - self._jobs_left,
        )

    def add_server(self, engine: Engine) -> None:
        """A server joins."""
        self.engines.append(engine)

    def kill_server(self, engine: Engine) -> None:
        """A server dies: its jobs begin their calls anew at another."""
        self.engines.remove(engine)
        self._gone.append(engine)
        lost = [*engine.running, *engine.waiting]
        engine.running, engine.waiting = [], deque()
        for call in lost:
            job = self._by_call.pop(id(call))
            job.server = None
            self._send(job, call.left, call.context)

    # ---- one job

    def _claim(self, process: SimProcess) -> None:
        while self._queue and process.room > 0:
            job = self._queue.popleft()
            job.process = process
            self._began.setdefault(job.group, self.now_s)
            process.places.come(job, f"{job.group}", float(job.group))
            self._want(job)

    def _want(self, job: SimJob) -> None:
        assert job.process is not None
        if job.process.places.want(job):
            turn = job.turns[0]
            self._send(job, turn.tokens, job.context)

    def _send(self, job: SimJob, tokens: float, context: float) -> None:
        if job.server is None or job.server not in self.engines:
            job.server = min(self.engines, key=lambda engine: (self._assigned(engine), engine.name))
        job.call = EngineCall(job.number, context, tokens)
        job.call_began_s = self.now_s
        self._by_call[id(job.call)] = job
        job.server.begin(job.call)

    def _assigned(self, engine: Engine) -> int:
        return sum(1 for job in self._by_call.values() if job.server is engine)

    def _called(self, job: SimJob) -> None:
        assert job.process is not None
        assert job.call is not None
        process = job.process
        process.call_s += 0.1 * (self.now_s - job.call_began_s - process.call_s)
        job.context, job.call = job.call.context, None
        turn = job.turns.popleft()
        process.places.called(job)
        if not job.turns:
            self._ended(job)
            return
        job.context += turn.answer_tokens
        self._tools.append((self.now_s + turn.tool_s, job))
        if process.a_call:
            self._wake(process.places.go(job))
            process.places.come(job, f"{job.group}", float(job.group))

    def _ended(self, job: SimJob) -> None:
        assert job.process is not None
        self._jobs_left -= 1
        self._left[job.group] -= 1
        if not self._left[job.group]:
            self._group_s.append(self.now_s - self._began[job.group])
        self._wake(job.process.places.go(job))

    def _tools_end(self) -> None:
        due = [job for when, job in self._tools if when <= self.now_s]
        if due:
            self._tools = [(when, job) for when, job in self._tools if when > self.now_s]
        for job in due:
            self._want(job)

    def _wake(self, granted: Sequence[SimJob]) -> None:
        for job in granted:
            self._want(job)

    # ---- one process

    def _look(self, process: SimProcess) -> None:
        if process.limit is not None:
            age_s = self.now_s - self._seen_s
            names = {engine.name for engine in self.engines}
            loads = [replace(load, age_s=age_s) for load in self._loads if load.server in names]
            change = process.limit.look(self.now_s, loads, used=process.places.acting, call_s=process.call_s, everybody=self._everybody())
            if change is not None:
                self._wake(process.places.set_limit(change.after))
                if process.aborts and change.after < change.before and change.cause == "kv":
                    self._abort_beyond(process)
            process.history.append(process.limit.places)
        if len(process.places):
            self._held.append(process.places.held / len(process.places))

    def _everybody(self) -> Everybody:
        there = [process for process in self.processes if self.now_s >= process.from_s and process.limit is not None]
        return Everybody(sum(process.places.limit for process in there), sum(process.slots for process in there))

    def _abort_beyond(self, process: SimProcess) -> None:
        calling = sorted((job for job in self._by_call.values() if job.process is process), key=lambda job: (job.group, job.number))
        for job in calling[process.places.limit :]:
            assert job.server is not None
            assert job.call is not None
            job.server.abort(job.call)
            del self._by_call[id(job.call)]
            job.context = job.call.context
            job.turns[0] = SimTurn(job.call.left, job.turns[0].tool_s, job.turns[0].answer_tokens)
            job.call = None
            process.places.called(job)
            self._want(job)


def _jobs(work: Work) -> list[SimJob]:
    rng = random.Random(work.seed)

    def around(median: float, sigma: float = 0.6) -> float:
        return median * rng.lognormvariate(0.0, sigma * work.spread)

    jobs: list[SimJob] = []
    for group in range(work.groups):
        prompt = around(work.prompt_tokens, 0.4)
        longer = 3.0 if group >= work.longer_from else 1.0
        hardness = rng.lognormvariate(0.0, 0.4 * work.spread)  # members of a group are alike
        for _ in range(work.n):
            turns = deque(
                SimTurn(around(work.turn_tokens) * hardness * longer, around(work.tool_s, 1.0), around(work.answer_tokens))
                for _ in range(rng.randint(*work.turns))
            )
            jobs.append(SimJob(len(jobs), group, prompt, turns))
    return jobs
