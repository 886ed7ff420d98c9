"""The DAPO supervisor: counts informative groups to a step's target, replaces what is filtered, cancels what nobody needs any more.

    what a step asks for    StepSpec, CancelRule, OnStale, Surplus, Loss
    what the rules look at  RunView, OpenStep, ClosedGroup, FlyingGroup, Member, Basis
    what they decide        Account, Reach, Launch, Verdict
    the rules               ledger (steps and cancels), policies (verdicts), informative (what teaches something), staleness (how old),
                            loss_policy (what of a member is trained), replenishment (how many in flight)

The process is `pipeline.supervisor.loop`; it is not imported here, so that a trainer can open a step without it.
"""

from pipeline.supervisor.actions import Account, Launch, Reach, Verdict
from pipeline.supervisor.informative import BUILT_IN, Policy, check_policy
from pipeline.supervisor.loss_policy import Loss
from pipeline.supervisor.policies import Judgement, judge
from pipeline.supervisor.staleness import Version
from pipeline.supervisor.step_spec import CancelRule, OnStale, StepSpec, Surplus
from pipeline.supervisor.views import Basis, ClosedGroup, FlyingGroup, Member, OpenStep, RunView

__all__ = [
    "BUILT_IN",
    "Account",
    "Basis",
    "CancelRule",
    "ClosedGroup",
    "FlyingGroup",
    "Judgement",
    "Launch",
    "Loss",
    "Member",
    "OnStale",
    "OpenStep",
    "Policy",
    "Reach",
    "RunView",
    "StepSpec",
    "Surplus",
    "Verdict",
    "Version",
    "check_policy",
    "judge",
]
