"""The DAPO supervisor: counts informative groups to a step's target, replaces what is filtered, cancels what nobody needs any more.

    what a step asks for    step_spec (StepSpec, CancelRule, OnStale, Surplus), loss_policy (Loss: what of a member is trained)
    what the rules look at  views (RunView, OpenStep, ClosedGroup, FlyingGroup, Member, Basis)
    what they decide        actions (Account, Reach, Launch, Verdict)
    the rules               ledger (steps and cancels), policies (verdicts), informative (what teaches something), staleness (how old),
                            replenishment (how many in flight)
    the process             loop

Nothing is imported here: a trainer opens steps, and loads neither rules nor process for that.
"""
