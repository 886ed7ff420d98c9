"""The ledger's scripts in plain Python: what the state of a run must be after each of them. Small, slow and obvious.

The rules of `pipeline.supervisor` decide on its views; it applies their actions as the scripts promise to. It knows nothing of Redis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.messages import Outcome
from pipeline.supervisor.actions import Account, Launch, Reach, Spare, Verdict
from pipeline.supervisor.staleness import Version
from pipeline.supervisor.step_spec import OnStale, StepSpec, Surplus
from pipeline.supervisor.views import Basis, ClosedGroup, FlyingGroup, Member, OpenStep, RunView

RUN = "run1"
JUDGED_MOST = 512


class Moved(Exception):
    """Decided on a state that is no more."""


@dataclass
class Mark:
    """What is known of a prompt."""

    state: str
    incarnation: int
    draw: int
    redraws: int
    place: int

    def text(self) -> str:
        """As it stands in Redis."""
        return f"{self.state} {self.incarnation} {self.draw} {self.redraws} {self.place}"


@dataclass
class Group:
    """A group from launch to verdict."""

    id: str
    prompt: str
    draw: int
    incarnation: int
    step: int
    spec: StepSpec
    launched_ms: int
    redraws: int
    members: dict[int, Member] = field(default_factory=dict)
    begun: int = 0
    closed_ms: int = -1
    given_up: str = ""
    verdict: Verdict | None = None
    accounted_to: int | None = None
    is_parked: bool = False

    @property
    def is_open(self) -> bool:
        return self.closed_ms < 0


@dataclass
class Step:
    """A step that was asked for."""

    index: int
    spec: StepSpec
    incarnation: int
    joined: list[str] = field(default_factory=list)
    reached: bool = False
    short: bool = False
    trained: int = 0
    """Incarnation in which its update came; 0 = none."""


class ReferenceLedger:
    """One run."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.incarnation = 1
        self.revision = 0
        self.marks: dict[str, Mark] = {}
        self.reserve: set[str] = set()
        self.steps: dict[int, Step] = {}
        self.groups: dict[str, Group] = {}
        self.flying: set[str] = set()
        self.closed: set[str] = set()
        self.parked: set[str] = set()
        self.ended = 0
        self.need = False
        self.judged = 0
        self.informative = 0
        self.version: int | None = None
        self.records: list[str] = []
        """Ids of groups, in the order they were accounted."""

    # what the trainer does

    def connect(self) -> None:
        self.incarnation += 1
        self.version = None

    def set_version(self, number: int) -> bool:
        """False: it would go back."""
        if self.version is not None and number < self.version:
            return False
        if number != self.version:
            if self.version is not None and (waiting := self.untrained()):
                self.steps[waiting[0]].trained = self.incarnation
            self.version = number
            self.revision += 1
        return True

    def untrained(self) -> list[int]:
        """Steps that were reached and whose update has not come; nothing is acked here."""
        return sorted(step.index for step in self.steps.values() if step.reached and step.trained != self.incarnation)

    def push(self, prompts: Sequence[str]) -> list[bool]:
        was_empty = not self.reserve
        fresh: list[bool] = []
        for prompt in prompts:
            mark = self.marks.get(prompt)
            if mark and (mark.incarnation == self.incarnation or mark.state in ("reserve", "flying")):
                fresh.append(False)
                continue
            if mark:
                self.marks[prompt] = Mark("reserve", self.incarnation, mark.draw + 1, 0, mark.place)
            else:
                self.marks[prompt] = Mark("reserve", self.incarnation, 0, 0, len(self.marks) + 1)
            self.reserve.add(prompt)
            fresh.append(True)
        if any(fresh):
            if was_empty or self.ended or self.need:
                self.revision += 1
            self.ended, self.need = 0, False
        return fresh

    def end_prompts(self) -> None:
        if self.ended != self.incarnation:
            self.ended, self.need = self.incarnation, False
            self.revision += 1

    def open_step(self, index: int, spec: StepSpec) -> None:
        step = self.steps.get(index)
        if step and (step.incarnation == self.incarnation or step.reached):
            return  # nothing is acked here, so a reached step comes again as it is
        if step:
            step.spec, step.incarnation = spec, self.incarnation
        else:
            self.steps[index] = Step(index, spec, self.incarnation)
        self.revision += 1

    # what the workers do

    def end_member(self, group_id: str, index: int, member: Member) -> None:
        """A member ends, once; the last one closes its group."""
        group = self.groups[group_id]
        if group.is_open and index not in group.members:
            group.members[index] = member
            if len(group.members) == group.spec.n:
                group.closed_ms = self.now_ms
                self.closed.add(group_id)

    # what the supervisor sees

    def view(self) -> RunView:
        steps = [s for s in self.steps.values() if not s.reached]
        return RunView(
            basis=Basis(RUN, self.incarnation, self.revision),
            steps=tuple(OpenStep(index=s.index, spec=s.spec, accepted=len(s.joined)) for s in sorted(steps, key=lambda s: s.index)),
            flying=len(self.flying),
            reserve=len(self.reserve),
            prompts_ended=self.ended == self.incarnation,
            need_announced=self.need,
            judged=self.judged,
            informative=self.informative,
            version=None if self.version is None else Version(self.incarnation, self.version),
            untrained=tuple(self.untrained()) if self.version is not None and any(s.spec.on_stale is OnStale.DROP for s in steps) else (),
            parked=tuple(self.closed_group(name) for name in sorted(self.parked)),
        )

    def closed_group(self, name: str) -> ClosedGroup:
        group = self.groups[name]
        step = self.steps.get(group.step)
        return ClosedGroup(
            id=name,
            incarnation=group.incarnation,
            want=group.spec.n,
            members=dict(group.members),
            closed_ms=group.closed_ms,
            spec=step.spec if step else group.spec,
            redraws=group.redraws,
            given_up=group.given_up,
            parked=group.is_parked,
        )

    def flying_groups(self) -> tuple[FlyingGroup, ...]:
        return tuple(
            FlyingGroup(
                id=name,
                incarnation=group.incarnation,
                want=group.spec.n,
                launched_ms=group.launched_ms,
                ended=len(group.members),
                finished=sum(m.outcome in (Outcome.OK, Outcome.MODEL_FAILURE) for m in group.members.values()),
                begun=group.begun,
            )
            for name in sorted(self.flying)
            if (group := self.groups[name]).is_open
        )

    # what the supervisor does

    def account(self, basis: Basis, accounts: Sequence[Account]) -> None:
        self._check(basis)
        fresh = [account for account in accounts if self.groups[account.group].verdict is None]
        for account in fresh:
            self._account_one(self.groups[account.group], account)
        self.revision += bool(fresh)

    def _account_one(self, group: Group, account: Account) -> None:
        self.closed.discard(group.id)
        self.flying.discard(group.id)
        self.parked.discard(group.id)
        informative = account.verdict is Verdict.INFORMATIVE
        if not group.is_parked and account.verdict not in (Verdict.CANCELLED, Verdict.SURPLUS, Verdict.STALE):
            self._count(informative)
        if informative and account.step is None:
            self.parked.add(group.id)
            group.is_parked = True
            return
        group.verdict, group.accounted_to = account.verdict, account.step
        self.records.append(group.id)
        if informative:
            assert account.step is not None
            step = self.steps[account.step]
            assert not step.reached, "joined a step that was reached"
            assert len(step.joined) < step.spec.target, "joined a full step"
            step.joined.append(group.id)
            assert not self._is_too_old(group, step), "joined a step that drops what is so old"
        if account.verdict is Verdict.STALE and not account.why.endswith("(stale) 1") and "needed" not in account.why:
            asked = min((s for s in self.steps.values() if not s.reached and len(s.joined) < s.spec.target), key=lambda s: s.index)
            assert self._is_too_old(group, asked), "dropped as stale without being so"
        if account.verdict is Verdict.SURPLUS and group.spec.surplus is Surplus.CARRY:
            assert all(s.spec.n != group.spec.n for s in self.steps.values() if not s.reached), "thrown away though it may be carried"
        if account.verdict in (Verdict.INFORMATIVE, Verdict.FILTERED, Verdict.DEAD):
            self._finish(group, "trained" if informative else account.verdict.value)
        else:
            self._return(group, redraws=int(account.verdict is Verdict.DROPPED))

    def _is_too_old(self, group: Group, step: Step) -> bool:
        """Counted anew: the oldest version of members that count, against the one that trains the step when each step brings an update."""
        if step.spec.on_stale is not OnStale.DROP or self.version is None:
            return False
        ends = (Outcome.OK, Outcome.MODEL_FAILURE)
        counting = [
            m
            for m in group.members.values()
            if m.outcome in ends and (m.reward == m.reward) and (m.reward is not None or m.outcome is ends[1])
        ]
        labels = [tuple(map(int, m.first_version.split("."))) for m in counting if m.first_version]
        if not labels:
            return False
        before = [s for s in self.steps.values() if s.index < step.index and not (s.reached and s.trained == self.incarnation)]
        incarnation, number = min(labels)
        return incarnation < self.incarnation or self.version + len(before) - number > step.spec.max_staleness

    def launch(self, basis: Basis, launch: Launch) -> list[str]:
        self._check(basis)
        most = min(launch.groups, launch.bound - len(self.flying))
        launched: list[str] = []
        for prompt in sorted(self.reserve, key=lambda name: self.marks[name].place)[: max(0, most)]:
            mark = self.marks[prompt]
            self.reserve.discard(prompt)
            while f"{RUN}.{prompt}.{mark.draw}" in self.groups:
                mark.draw += 1
            name = f"{RUN}.{prompt}.{mark.draw}"
            mark.state, mark.incarnation = "flying", self.incarnation
            spec = self.steps[launch.step].spec
            self.groups[name] = Group(
                name, prompt, mark.draw, self.incarnation, launch.step, spec, launched_ms=self.now_ms, redraws=mark.redraws
            )
            self.flying.add(name)
            launched.append(name)
        announced = most > len(launched) and self.ended != self.incarnation and not self.need
        self.need |= announced
        if launched or announced:
            self.revision += 1
        return launched

    def reach(self, basis: Basis, reach: Reach) -> list[str]:
        self._check(basis)
        step = self.steps[reach.step]
        assert not step.reached, "reached twice"
        if reach.short:
            assert self.ended == self.incarnation, "short while prompts may come"
            assert not self.reserve | self.flying | self.parked, "short while groups may come"
        else:
            assert len(step.joined) == step.spec.target, "reached away from its target"
        step.reached, step.short = True, reach.short
        given_up = self._give_up(reach.redundant, "redundant", spare=reach.spare)
        self.revision += 1
        return given_up

    def give_up_older(self) -> list[str]:
        older = [name for name in sorted(self.flying) if self.groups[name].incarnation != self.incarnation]
        given_up = self._give_up(older, "stale", spare=Spare.NONE)
        self.revision += bool(given_up)
        return given_up

    def _give_up(self, names: Sequence[str], reason: str, *, spare: Spare) -> list[str]:
        given_up: list[str] = []
        for name in names:
            group = self.groups[name]
            finished = any(m.outcome in (Outcome.OK, Outcome.MODEL_FAILURE) for m in group.members.values())
            spared = (spare and finished) or (spare is Spare.BEGUN and group.begun)
            if name in self.flying and group.is_open and not spared:
                self.flying.discard(name)
                group.given_up = reason
                self._return(group, redraws=0)
                given_up.append(name)
        return given_up

    def _return(self, group: Group, *, redraws: int) -> None:
        mark = self.marks[group.prompt]
        if mark.state == "flying" and mark.draw == group.draw:
            self.marks[group.prompt] = replace(mark, state="reserve", draw=mark.draw + 1, redraws=mark.redraws + redraws)
            self.reserve.add(group.prompt)

    def _finish(self, group: Group, state: str) -> None:
        mark = self.marks[group.prompt]
        if mark.state == "flying" and mark.draw == group.draw:
            mark.state = state

    def _count(self, informative: bool) -> None:
        self.informative += informative
        self.judged += 1
        if self.judged >= JUDGED_MOST:
            self.informative, self.judged = self.informative // 2, self.judged // 2

    def _check(self, basis: Basis) -> None:
        if (basis.incarnation, basis.revision) != (self.incarnation, self.revision):
            raise Moved

    # what must hold at any time

    def check(self) -> None:
        """Promises 3 and 12, and the account of prompts."""
        joined = [name for step in self.steps.values() for name in step.joined]
        assert len(joined) == len(set(joined)), "a group joined twice"
        assert len(self.records) == len(set(self.records)), "a group was accounted twice"
        for step in self.steps.values():
            assert len(step.joined) <= step.spec.target, "a step has more than its target"
            assert not step.reached or step.short or len(step.joined) == step.spec.target, "reached without its target"
            for name in step.joined:
                assert self.groups[name].verdict is Verdict.INFORMATIVE
        states = [mark.state for mark in self.marks.values()]
        assert states.count("reserve") == len(self.reserve), "the reserve and the marks differ"
        holders = [g.prompt for g in self.groups.values() if g.verdict is None and not g.given_up]
        assert sorted(holders) == sorted(p for p, m in self.marks.items() if m.state == "flying"), "a prompt is lost or flies twice"
        counts: Mapping[str, int] = {s: states.count(s) for s in ("trained", "filtered", "dead", "reserve", "flying")}
        assert sum(counts.values()) == len(self.marks), "pushed is not trained + filtered + dead + left"
