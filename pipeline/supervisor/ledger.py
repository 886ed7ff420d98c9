"""The rules of the ledger: given how a run stands, what to do. No Redis, no clock, no randomness.

Invariants (promises 3 and 12):
  1. A group closes once and its first verdict stands; it joins at most one step, and a step never has more than its target.
  2. An informative group joins the oldest open step with room for groups of its size; when there is none it is parked, and goes before all
     others when one opens. Nothing informative is thrown away, but by a step that says so: what is stale for it, or surplus.
  3. A step is reached once: at its target, or short when no prompt is left and nothing is in flight.
  4. No selection by time. Groups are accounted in the order they closed, members count as they were sampled, and by the default rule
     nothing is cancelled of which a member has finished: those that are cancelled return whole, so long ones are drawn as often as they
     were sampled.
  5. Every prompt ends as trained, filtered or dead, or is left: pushed = trained + filtered + dead + left.

Each function decides one kind of action on one view. Whoever acts takes a new view after each action that changes the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from zlib import crc32

from pipeline.messages import Outcome
from pipeline.supervisor.actions import Account, Launch, Reach, Spare, Verdict
from pipeline.supervisor.informative import BUILT_IN, Policy
from pipeline.supervisor.launch_order import in_launch_order, waits_for_the_reserve
from pipeline.supervisor.policies import SCORE, Judgement, judge
from pipeline.supervisor.replenishment import informative_rate, wanted_in_flight
from pipeline.supervisor.staleness import Version, is_too_old
from pipeline.supervisor.step_spec import CancelRule, OnStale, Surplus
from pipeline.supervisor.token_fates import fates, is_late
from pipeline.supervisor.views import ClosedGroup, FlyingGroup, Member, OpenStep, RunView

MOST_COMPONENTS = 16
"""Named parts of a reward that a group's record has a member: records stay short."""
SILENT_MS = 45_000
"""A trainer is silent when it gave no sign for so long: it gives one each 10 s at least, and may be busy for a moment."""
BROKEN_IN_A_ROW = 8
"""So many groups in a row that infrastructure broke whole, and the next ones would be broken too: a task that no worker has, data that its
handler cannot read, a sandbox that starts nowhere. More than one bad row explains, since its prompt is drawn two or three times."""
PROBE_EVERY_MS = 15_000
"""While that is so, one group is tried at a time, so long after the last one broke."""
NO_STEP_OF_ITS_SIZE = "no open step asks for groups of its size"
NO_ROOM = "no open step has room"


def account(view: RunView, closed: Sequence[ClosedGroup], policies: Mapping[str, Policy] = BUILT_IN) -> list[Account]:
    """Verdicts for groups that closed and for parked ones that can move on, in the order to apply them.

    Parked groups that no step has room for are left where they are, and so are groups whose policy is needed and not among `policies`.
    """
    steps = list(view.steps)
    accounts: list[Account] = []
    # of deterministic steps the broken groups go at once, and those that came through wait for their turn: not in a row
    some_came_through = any(is_through(member) for group in closed for member in group.members.values())
    ready = in_launch_order(view, [group for group in closed if not group.parked], policies)
    for group in sorted(view.parked, key=_age) + sorted(ready, key=_age):
        judgement = judge(group, incarnation=view.basis.incarnation, run_cancelled_for=view.cancelled_for, policies=policies)
        if judgement is None:
            continue
        verdict, why = judgement.verdict, judgement.why
        step = steps[0].index if steps else None
        if not group.launched_by_ledger:
            step = None
        elif verdict is Verdict.INFORMATIVE:
            at = next((i for i, s in enumerate(steps) if s.wanting and s.spec.n == group.want), None)
            if at is not None and (too_old := _too_old(view, judgement, steps[at])):
                verdict, why = Verdict.STALE, too_old
            elif at is not None:
                step = steps[at].index
                steps[at] = replace(steps[at], accepted=steps[at].accepted + 1)
            elif steps and all(s.spec.n != group.want for s in steps):
                verdict, why = Verdict.SURPLUS, NO_STEP_OF_ITS_SIZE
            elif group.parked:
                continue
            elif group.spec.surplus is Surplus.DISCARD:
                verdict, why = Verdict.SURPLUS, NO_ROOM
            else:
                step = None
        accounts.append(_account(group, judgement, verdict, why, step, counts_broken=not (group.spec.deterministic and some_came_through)))
    return accounts


def trained_with(view: RunView, step: int) -> Version | None:
    """The version that step `step` will be trained with, if each step brings one update: the current one, and those of steps before it."""
    if view.version is None:
        return None
    before = sum(other.index < step for other in view.steps) + sum(index < step for index in view.untrained)
    return Version(view.version.incarnation, view.version.number + before)


def _too_old(view: RunView, judgement: Judgement, step: OpenStep) -> str:
    """Why a group is too old for a step that drops such groups; empty when it is not."""
    spec, version = step.spec, trained_with(view, step.index)
    if spec.on_stale is not OnStale.DROP or not is_too_old(judgement.oldest, version, spec.max_staleness):
        return ""
    return f"sampled by {judgement.oldest}, step {step.index} is trained with {version}, at most {spec.max_staleness} apart"


def late(view: RunView, flying: Sequence[FlyingGroup]) -> tuple[str, ...]:
    """Groups that are open past their deadline, longest in flight first."""
    return tuple(group.id for group in sorted(flying, key=lambda group: group.launched_ms) if 0 < group.late_at_ms <= view.now_ms)


def reached(view: RunView) -> OpenStep | None:
    """The oldest open step that can end now, or None. At its target, or short because nothing more can come."""
    if not view.steps:
        return None
    for step in view.steps:
        if not step.wanting:
            return step
    nothing_comes = view.prompts_ended and not view.reserve and not view.flying and not view.parked
    return view.steps[0] if nothing_comes else None


def reach(view: RunView, step: OpenStep, flying: Sequence[FlyingGroup]) -> Reach:
    """How a step ends and what that makes redundant.

    By the default rule, with no other step open, groups without a finished member are redundant. With others open, nothing is that was
    begun: it serves them, and to cancel it would select by time once a step for no gain. Of what was not begun, so much is redundant as
    those steps do not need at the running filter rate and their over-sampling.
    """
    rule = step.spec.cancel
    rest = [other for other in view.steps if other.index != step.index]
    candidates = {
        CancelRule.CARRY: [],
        CancelRule.ALL: list(flying),
        CancelRule.DEFAULT: [group for group in flying if not (group.finished or (rest and group.begun))],
    }[rule]
    if rule is CancelRule.DEFAULT:
        keep = max(_wanted_each(view, rest), default=0)
        candidates = sorted(candidates, key=_least_work_first)[: max(0, len(flying) - keep)]
    return Reach(
        step=step.index,
        short=bool(step.wanting),
        redundant=tuple(group.id for group in candidates),
        spare=Spare.NONE if rule is not CancelRule.DEFAULT else Spare.BEGUN if rest else Spare.FINISHED,
    )


def reporter_is_silent(view: RunView) -> bool:
    """Whether the oldest open step takes its rewards from a trainer that gives no sign."""
    return bool(view.steps) and view.steps[0].spec.outside and view.now_ms - view.contact_ms > SILENT_MS


def is_broken(view: RunView) -> bool:
    """Whether infrastructure breaks whatever is launched."""
    return view.broken >= BROKEN_IN_A_ROW


def launch(view: RunView) -> Launch | None:
    """The next groups to launch, for the oldest step that those in flight do not cover; None when enough are in flight or none is left.

    While the trainer is behind with its results nothing is launched for steps ahead of the oldest open one, and always what that one needs:
    it may be the one that the trainer waits for. The bound is judged here and not where jobs are admitted, since a group that is launched
    counts as in flight: held back there, it would keep the oldest step from what it needs.

    Nothing is launched for rewards that nobody is there to report: every prompt of the reserve would be sampled, wait in vain, and die.
    While infrastructure breaks every group, one is tried now and then, for the same reason: a data set would be used up in minutes.
    """
    if not view.is_open or view.cancelled_for or (not view.reserve and (view.prompts_ended or view.need_announced)):
        return None
    if reporter_is_silent(view):
        return None
    if is_broken(view):
        is_due = bool(view.steps) and not view.flying and view.now_ms - view.broken_ms >= PROBE_EVERY_MS
        return Launch(step=view.steps[0].index, groups=1, bound=1) if is_due else None
    steps = view.steps[:1] if view.is_behind else view.steps
    for step, bound in zip(steps, _wanted_each(view, steps), strict=True):
        if step.spec.deterministic and waits_for_the_reserve(view):
            bound = max(bound, view.flying + 1)
        missing = bound - view.flying
        if missing > 0:
            return Launch(step=step.index, groups=missing, bound=bound)
    return None


def _wanted_each(view: RunView, steps: Sequence[OpenStep]) -> list[int]:
    return wanted_in_flight(steps, informative_rate(view.informative, view.judged))


def _age(group: ClosedGroup) -> tuple[int, str]:
    return (group.place if group.spec.deterministic else group.closed_ms), group.id


def _least_work_first(group: FlyingGroup) -> tuple[int, int, int, str]:
    return group.ended, group.begun, -group.launched_ms, group.id


def is_through(member: Member) -> bool:
    """Whether it ended with something the policy did."""
    return member.outcome in (Outcome.OK, Outcome.MODEL_FAILURE)


def _account(group: ClosedGroup, judgement: Judgement, verdict: Verdict, why: str, step: int | None, *, counts_broken: bool) -> Account:
    members = group.members.values()
    valid = {index for index, value in enumerate(judgement.values) if value is not None}
    ended = [member for member in members if is_through(member) or is_late(member)]
    return Account(
        group=group.id,
        verdict=verdict,
        why=why.replace("|", "/"),
        step=step,
        want=group.want,
        valid=len(valid),
        mean=judgement.mean,
        spread=judgement.spread,
        rewards=judgement.values,
        components=components_a_member(group),
        sampled=sum(member.spent_tokens for member in members),
        total=sum(member.total_tokens for member in members),
        tokens=fates(verdict, group.members, valid),
        ended_lengths=tuple(member.sampled_tokens for member in ended),
        cut_lengths=tuple(member.spent_tokens for member in members if member not in ended),
        keeps_bodies=verdict is Verdict.FILTERED and is_kept_sample(group.prompt, group.spec.keep_filtered),
        first_version=oldest_version(member.first_version for member in members),
        last_version=newest_version(member.last_version for member in members),
        broken=counts_broken
        and verdict in (Verdict.DROPPED, Verdict.DEAD)
        and {member.outcome for member in members} == {Outcome.INFRA_FAILURE},
    )


def components_a_member(group: ClosedGroup) -> dict[str, tuple[float | None, ...]]:
    """Named parts of the rewards, a value a member. Not more than `MOST_COMPONENTS` of them, the first by name."""
    names = sorted({name for member in group.members.values() for name in member.components} - {SCORE})[: MOST_COMPONENTS - 1]
    members = [group.members.get(index) for index in range(group.want)]
    parts = {SCORE: tuple(None if member is None else member.components.get(SCORE, member.reward) for member in members)}
    return parts | {name: tuple(None if member is None else member.components.get(name) for member in members) for name in names}


def is_kept_sample(prompt: str, share: float) -> bool:
    """Whether the trajectories of a filtered prompt are kept: the same prompts whenever and by whomever it is asked."""
    return crc32(prompt.encode()) < share * 2**32


def oldest_version(labels: Iterable[str]) -> str:
    """The lowest of some policy versions, empty when none is known. Numbers in a label (`<incarnation>.<number>`) compare as numbers."""
    return min(filter(None, labels), key=_version_order, default="")


def newest_version(labels: Iterable[str]) -> str:
    """The highest of some policy versions, empty when none is known."""
    return max(filter(None, labels), key=_version_order, default="")


def _version_order(label: str) -> tuple[tuple[int, int, str], ...]:
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in label.split("."))
