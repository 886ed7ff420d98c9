"""Brings the ledgers of one shard up to date: reads how things stand, lets the rules decide, acts, and looks again.

Wherever this is killed, the next one goes on: every action is one script, and what it did not come to is found again in Redis (closed
groups in `z:closed`, parked ones, steps at their target, the gap between what is in flight and what is wanted). An action that another
supervisor was faster with is refused, and the run is looked at again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import redis
import structlog

from pipeline.errors import BrokerUnreachable, QueueFull, RollstreamError, RunClosed
from pipeline.messages import CancelReason, Stage
from pipeline.scripts.step_calls import ACCOUNTS_A_CALL, GIVEN_UP_A_CALL, JOBS_A_CALL, Moved, StepScripts
from pipeline.supervisor import ledger
from pipeline.supervisor.actions import Account, Spare, Verdict
from pipeline.supervisor.informative import BUILT_IN, Policy
from pipeline.supervisor.loading import LedgerReader, UnreadableGroup
from pipeline.supervisor.monitors import length_bias
from pipeline.supervisor.shortage import shortage
from pipeline.supervisor.step_spec import CancelRule
from pipeline.supervisor.views import ClosedGroup, RunView

log = structlog.get_logger(__name__)
Found = TypeVar("Found")

CLOSED_A_PAGE = 256
PAGES_A_ROUND = 64
"""A round ends after this many, so that no flood of closed groups keeps other runs waiting for long."""
ANNOUNCE_EVERY_ROUNDS = 5
"""Rounds over all runs between two announcements of the policies that are known here: well within the time that one stands for."""
UNUSABLE = (RollstreamError, redis.RedisError, ValueError, KeyError, ArithmeticError)
"""What comes of keys that hold something else than ours."""
LOOKS = 8
"""How often a run is looked at again when others were faster; then it is left to them until the next round."""


class Drain:
    """Acts on the ledgers of one shard.

    Args:
        window: claimable jobs that INIT's stream may hold (`QueueSettings.admit_window`).
        policies: informativeness policies that this process knows.
    """

    def __init__(self, reader: LedgerReader, scripts: StepScripts, *, window: int, policies: Mapping[str, Policy] = BUILT_IN) -> None:
        self._reader = reader
        self._scripts = scripts
        self._window = window
        self._retired: dict[str, int] = {}
        self._policies = policies
        self._unusable: set[str] = set()
        self._unusable_shared: set[str] = set()
        self._told_unknown: set[tuple[str, str]] = set()
        self._rounds = 0
        self._idle_stages = set[Stage]()
        self._stage_is_idle = False

    async def round(self, woken: Collection[str], *, every_run: bool) -> None:
        """Accounts what closed, and looks at the runs that were named, or at all that have work.

        Raises:
            BrokerUnreachable: no contact; everything is still there for the next round.
        """
        looked: set[str] = set()
        left = 0
        if every_run:
            if self._rounds % ANNOUNCE_EVERY_ROUNDS == 0:
                await self._of_all_runs("policies", self._scripts.announce_policies(sorted(self._policies)), None)
            self._rounds += 1
            # twice in a row: an entry that was just added, to a stage whose worker is just starting, is no shortage
            idle = set(await self._of_all_runs("stages", self._reader.idle_stages(), []))
            self._stage_is_idle, self._idle_stages = bool(idle & self._idle_stages), idle
        for _ in range(PAGES_A_ROUND):
            closed = await self._of_all_runs("closed", self._reader.closed(CLOSED_A_PAGE, skip=left), {})
            runs = set(closed) | (set(woken) - looked)
            if every_run:
                runs |= set(await self._of_all_runs("runs", self._reader.active_runs(), [])) - looked
            for run in sorted(runs):
                groups = closed.get(run, [])
                left += await self._look_after(run, groups, find_stuck=every_run and run not in looked)
            looked |= runs
            if sum(map(len, closed.values())) < CLOSED_A_PAGE:
                return

    async def _of_all_runs(self, what: str, asked: Awaitable[Found], nothing: Found) -> Found:
        """What is asked of keys that all runs share, or nothing when they are none of ours any more: the rest of a round goes on."""
        try:
            found = await asked
        except BrokerUnreachable:
            raise
        except UNUSABLE as error:
            if what not in self._unusable_shared:
                self._unusable_shared.add(what)
                log.error("shared_key_unusable", what=what, error=f"{type(error).__name__}: {error}")
            return nothing
        self._unusable_shared.discard(what)
        return found

    async def _look_after(self, run: str, closed: Sequence[str], *, find_stuck: bool) -> int:
        """Does what one run needs; returns how many of the closed groups stay. One unusable run does not keep the others waiting."""
        try:
            groups = [*closed, *(await self._reader.stuck(run) if find_stuck else ())]
            for _ in range(LOOKS):
                try:
                    accounted = await self._act(run, groups, look_for_late=find_stuck)
                    self._unusable.discard(run)
                    return sum(group not in accounted for group in closed)
                except Moved:
                    continue
            log.info("ledger_contended", run=run, looks=LOOKS)
        except BrokerUnreachable:
            raise
        except RunClosed:
            return 0
        except UNUSABLE as error:
            if run not in self._unusable:
                self._unusable.add(run)
                log.error("ledger_unusable", run=run, error=f"{type(error).__name__}: {error}")
        return len(closed)

    async def _act(self, run: str, closed: Sequence[str], *, look_for_late: bool) -> frozenset[str]:
        """Returns those of the closed groups that are closed no more; others wait for their turn (`launch_order`)."""
        view = await self._reader.run(run)
        if view is None:
            for group in closed:
                await self._scripts.drop_closed(group, f"run {run} is gone")
            return frozenset(closed)
        view = await self._give_up_older(view)
        if look_for_late and view.has_deadlines:
            await self._end_late(view)
        for group, why in view.unreadable_parked.items():
            await self._drop(group, why)
        readable = await self._readable(closed)
        view, waiting = await self._account(view, readable)
        view = await self._reach(view)
        view, refused = await self._launch(view)
        await self._note_shortage(view, refused=refused)
        return frozenset(closed) - waiting

    async def _readable(self, closed: Sequence[str]) -> list[ClosedGroup]:
        groups: list[ClosedGroup] = []
        for group, found in (await self._reader.groups(closed)).items():
            if isinstance(found, UnreadableGroup):
                await self._drop(group, found.why)
            else:
                groups.append(found)
        return groups

    async def _drop(self, group: str, why: str) -> None:
        """Takes a group that cannot be read out of the ledger. One that another supervisor accounted, and the trainer acked, since we read
        the list is gone and no error."""
        if await self._scripts.drop_closed(group, why):
            log.error("closed_group_unreadable", group=group, why=why)

    async def _give_up_older(self, view: RunView) -> RunView:
        """Gives up the groups of older incarnations: nobody trains on them, their prompts are drawn anew."""
        run, incarnation = view.basis.run, view.basis.incarnation
        if self._retired.get(run) == incarnation:
            return view
        older = [group for group in await self._reader.flying(run) if group.incarnation != incarnation]
        if not older:
            self._retired[run] = incarnation
            return view
        for groups in _portions([group.id for group in older], max((group.want for group in older), default=1)):
            revision, given_up = await self._scripts.give_up_groups(view.basis, groups, CancelReason.STALE.value, spare=Spare.NONE)
            view = _at(view, revision, flying=view.flying - len(given_up), reserve=view.reserve + len(given_up))
        log.info("older_incarnation_given_up", run=run, incarnation=incarnation, groups=len(older))
        self._retired[run] = incarnation
        return view

    async def _end_late(self, view: RunView) -> None:
        """Ends what is open past its deadline; it closes by its members' ends, and is accounted like any other then."""
        flying = await self._reader.flying(view.basis.run)
        late = ledger.late(view, flying)
        if late:
            for groups in _portions(late, max(group.want for group in flying)):
                for group in await self._scripts.end_late_groups(view.basis, groups):
                    log.warning("group_late", run=view.basis.run, group=group)

    def _tell_unknown_policies(self, view: RunView, groups: Sequence[ClosedGroup]) -> None:
        """Says once that groups wait for a supervisor that knows their policy."""
        for policy in sorted({group.spec.policy for group in groups} - set(self._policies)):
            if (view.basis.run, policy) not in self._told_unknown:
                self._told_unknown.add((view.basis.run, policy))
                why = f"its groups wait for a supervisor that does; known here: {', '.join(sorted(self._policies))}"
                log.error("policy_unknown", run=view.basis.run, policy=policy, what=why)

    async def _account(self, view: RunView, closed: Sequence[ClosedGroup]) -> tuple[RunView, frozenset[str]]:
        """Returns how things stand then, and which groups wait for others before them."""
        accounts = ledger.account(view, closed, self._policies)
        waiting = frozenset(group.id for group in closed) - {account.group for account in accounts}
        self._tell_unknown_policies(view, [*closed, *view.parked])
        if not accounts:
            return view, waiting
        for at in range(0, len(accounts), ACCOUNTS_A_CALL):
            batch = accounts[at : at + ACCOUNTS_A_CALL]
            revision, words = await self._scripts.account_groups(view.basis, batch)
            view = _at(view, revision)
            for account, word in zip(batch, words, strict=True):
                _log_account(view.basis.run, account, word)
        return await self._again(view), waiting

    async def _reach(self, view: RunView) -> RunView:
        while (step := ledger.reached(view)) is not None:
            flying = () if step.wanting or step.spec.cancel is CancelRule.CARRY else await self._reader.flying(view.basis.run)
            action = ledger.reach(view, step, flying)
            first, *rest = _portions(action.redundant, step.spec.n)
            figures = length_bias(await self._reader.window(view.basis.run)).figures()
            revision, given_up = await self._scripts.reach_step(view.basis, replace(action, redundant=first), figures)
            log.info("step_reached", run=view.basis.run, step=step.index, groups=step.accepted, short=action.short, given_up=len(given_up))
            # what one script could not take; those left when this is interrupted run on and serve the next step
            for groups in rest:
                view = _at(view, revision)
                revision, _ = await self._scripts.give_up_groups(
                    view.basis, groups, CancelReason.REDUNDANT.value, spare=action.spare, step=step.index
                )
            view = await self._again(view)
        return view

    async def _note_shortage(self, view: RunView, *, refused: bool) -> None:
        """Says what keeps the run from having enough groups at work, when that is another thing than before."""
        why = shortage(view, refused=refused, stage_is_idle=self._stage_is_idle)
        if (why or "") != view.shortage:
            await self._scripts.note_shortage(view.basis, why or "")
            log.info("shortage", run=view.basis.run, why=why or "none", before=view.shortage or "none")

    async def _launch(self, view: RunView) -> tuple[RunView, bool]:
        """Returns how things stand then, and whether Redis took no new work."""
        while (action := ledger.launch(view)) is not None:
            n = next(step.spec.n for step in view.steps if step.index == action.step)
            most = min(action.groups, max(1, JOBS_A_CALL // n))
            try:
                done = await self._scripts.launch(view.basis, replace(action, groups=most), window=self._window)
            except QueueFull as full:
                log.warning("launch_refused", run=view.basis.run, why=full.why)
                return view, True
            if done.announced:
                log.info("prompts_needed", run=view.basis.run, step=action.step)
            view = _at(view, done.revision, flying=view.flying + done.groups, reserve=view.reserve - done.groups)
            if done.groups < most:
                break
        return view, False

    async def _again(self, view: RunView) -> RunView:
        fresh = await self._reader.run(view.basis.run)
        if fresh is None:
            raise RunClosed(view.basis.run, "gone")
        return fresh


def _portions(groups: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """Groups of at most `n` members in portions that one script takes; at least one portion, which may be empty."""
    most = max(1, GIVEN_UP_A_CALL // n)
    return [tuple(groups[at : at + most]) for at in range(0, max(1, len(groups)), most)]


def _at(view: RunView, revision: int, **changes: int) -> RunView:
    return replace(view, basis=replace(view.basis, revision=revision), **changes)  # type: ignore[arg-type]


def _log_account(run: str, account: Account, word: str) -> None:
    if word == "done":
        # a group that is lost to something broken (infrastructure, a policy that raises) is told where people look
        tell = log.warning if account.verdict in (Verdict.DROPPED, Verdict.DEAD) else log.debug
        tell("group_accounted", run=run, group=account.group, verdict=account.verdict.value, step=account.step, why=account.why)
    elif word == "parked":
        log.debug("group_parked", run=run, group=account.group)
