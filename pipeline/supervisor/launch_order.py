"""Rules of deterministic steps (ADR 11): closed groups are accounted in the order of their prompts' places, whatever closed first.

Invariants:
  1. A group gets a verdict that lasts (informative, filtered, dead) only when no prompt of a lower place is in the reserve or in flight:
     all before it have theirs. Until then it waits in `z:closed`.
  2. A group that was launched for a step that is not open any more is given up: what it came to belongs to that step's weights.
  3. The lowest place is always in flight or about to be: a prompt that returned before those in flight is launched over the bound, so that
     nothing waits for a prompt that waits for room.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipeline.supervisor.actions import Verdict
from pipeline.supervisor.informative import BUILT_IN, Policy
from pipeline.supervisor.policies import judge
from pipeline.supervisor.views import ClosedGroup, RunView

STEP_IS_OVER = "redundant: closed after the deterministic step that it was launched for had its target"
RETURNS = frozenset((Verdict.CANCELLED, Verdict.DROPPED, Verdict.STALE))
"""Verdicts after which the prompt stands in the reserve again, at its old place."""


def in_launch_order(view: RunView, closed: Sequence[ClosedGroup], policies: Mapping[str, Policy] = BUILT_IN) -> list[ClosedGroup]:
    """The closed groups that can be accounted now. Those of steps that are not deterministic always can.

    One whose policy is not among `policies` has no verdict yet, and all behind it wait with it.
    """
    ready = [group for group in closed if not group.spec.deterministic]
    ordered = sorted((group for group in closed if group.spec.deterministic), key=lambda group: (group.place, group.id))
    if not ordered:
        return ready
    open_steps = {step.index: step.wanting for step in view.steps if step.spec.deterministic}
    wanting = sum(open_steps.values())
    known = {group.id for group in ordered}
    places = [place for group, place in view.flying_places.items() if group not in known]
    frontier = min(places, default=math.inf)
    if view.reserve_place is not None:
        frontier = min(frontier, view.reserve_place)
    for group in ordered:
        if group.launched_for not in open_steps and not group.given_up:
            group = replace(group, given_up=STEP_IS_OVER)
        judgement = judge(group, incarnation=view.basis.incarnation, run_cancelled_for=view.cancelled_for, policies=policies)
        verdict = judgement.verdict if judgement else None
        if verdict in RETURNS:
            ready.append(group)
            # one that was given up holds no prompt: it went back then, and another draw may be in flight
            holds_prompt = group.id in view.flying_places
        elif verdict is not None and wanting > 0 and group.place < frontier:
            ready.append(group)
            wanting -= verdict is Verdict.INFORMATIVE
            holds_prompt = False
        else:
            holds_prompt = True
        if holds_prompt:
            frontier = min(frontier, group.place)
    return ready


def waits_for_the_reserve(view: RunView) -> bool:
    """Whether all that is in flight stands behind a prompt of the reserve."""
    return view.reserve_place is not None and bool(view.flying_places) and view.reserve_place < min(view.flying_places.values())
