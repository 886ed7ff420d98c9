"""A supervisor without Redis: the rules decide on the reference ledger's views, one action at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.supervisor import ledger as rules
from pipeline.supervisor.actions import Account, Launch, Reach
from pipeline.supervisor.step_spec import CancelRule
from pipeline.supervisor.views import Basis
from tests.model.reference_ledger import Moved, ReferenceLedger


@dataclass(frozen=True)
class Decision:
    """What a supervisor is about to do, and on which state it decided that."""

    basis: Basis
    action: Sequence[Account] | Reach | Launch


def decide(ledger: ReferenceLedger) -> Decision | None:
    """The next action, in the order the supervisor takes them; None when there is nothing to do."""
    view = ledger.view()
    accounts = rules.account(view, [ledger.closed_group(name) for name in sorted(ledger.closed)])
    if accounts:
        return Decision(view.basis, accounts)
    step = rules.reached(view)
    if step is not None:
        flying = () if step.wanting or step.spec.cancel is CancelRule.CARRY else ledger.flying_groups()
        return Decision(view.basis, rules.reach(view, step, flying))
    launch = rules.launch(view)
    return Decision(view.basis, launch) if launch else None


def act(ledger: ReferenceLedger, decision: Decision) -> list[str]:
    """Acts on a decision; groups that were launched or given up.

    Raises:
        Moved: the ledger is another by now.
    """
    match decision.action:
        case Reach():
            return ledger.reach(decision.basis, decision.action)
        case Launch():
            return ledger.launch(decision.basis, decision.action)
        case accounts:
            ledger.account(decision.basis, accounts)
            return []


def supervise(ledger: ReferenceLedger) -> None:
    """Acts until nothing is left to do."""
    ledger.give_up_older()
    for _ in range(10_000):
        decision = decide(ledger)
        if decision is None:
            return
        before = ledger.revision
        act(ledger, decision)
        if ledger.revision == before:
            return
    raise AssertionError("the rules never come to rest")


__all__ = ["Decision", "Moved", "act", "decide", "supervise"]
