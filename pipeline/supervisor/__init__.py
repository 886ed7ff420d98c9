"""The DAPO supervisor: counts informative groups to a step's target, replaces what is filtered, cancels what nobody needs any more.

    what a step asks for    StepSpec, CancelRule
    what the rules look at  RunView, OpenStep, ClosedGroup, FlyingGroup, Member, Basis
    what they decide        Account, Reach, Launch, Verdict
    the rules               ledger (steps and cancels), policies (verdicts), replenishment (how many in flight)

The process is `pipeline.supervisor.loop`; it is not imported here, so that a trainer can open a step without it.
"""

from pipeline.supervisor.actions import Account, Launch, Reach, Verdict
from pipeline.supervisor.policies import POLICIES, Judgement, find_policy, judge
from pipeline.supervisor.step_spec import CancelRule, StepSpec
from pipeline.supervisor.views import Basis, ClosedGroup, FlyingGroup, Member, OpenStep, RunView

__all__ = [
    "POLICIES",
    "Account",
    "Basis",
    "CancelRule",
    "ClosedGroup",
    "FlyingGroup",
    "Judgement",
    "Launch",
    "Member",
    "OpenStep",
    "Reach",
    "RunView",
    "StepSpec",
    "Verdict",
    "find_policy",
    "judge",
]
