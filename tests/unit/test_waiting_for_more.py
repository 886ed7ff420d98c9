"""Which ends of a stage wait for a reward from outside or for their group's hook (ADR 10)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.attempts import Awaiting, End, GivenUp, HandedOff, Settled, fault_of
from pipeline.messages import JobSpec, Outcome, RewardSource, StopReason
from pipeline.testing import a_job, a_settlement, a_template, a_trajectory
from workers.stages.eval import judged_outside
from workers.stages.stage import waiting_for_more

OUTSIDE = a_job(template=a_template(reward=RewardSource.OUTSIDE, reward_deadline_s=9.0))
HELD = a_job(template=a_template(hold_s=5.0))
UNJUDGED = Settled(judged_outside(a_trajectory()))


def test_a_trajectory_without_a_reward_awaits_one() -> None:
    end = waiting_for_more(UNJUDGED, OUTSIDE)

    assert end == Awaiting(UNJUDGED.settlement, b"", "eval", 9.0, 0.0)
    assert fault_of(end) == ""


def test_a_limit_that_the_policy_hit_awaits_its_reward_too() -> None:
    cut = judged_outside(replace(a_trajectory(), stop=StopReason.TURNS))

    assert (cut.outcome, cut.reason, cut.reward) == (Outcome.MODEL_FAILURE, "turns", None)
    assert isinstance(waiting_for_more(Settled(cut), OUTSIDE), Awaiting)


def test_a_member_with_its_reward_waits_for_the_hook_without_a_deadline_of_its_own() -> None:
    end = Settled(a_settlement(1.0), b"grade", attached={"log": b"log"})

    assert waiting_for_more(end, HELD) == Awaiting(end.settlement, b"grade", "eval", None, 5.0, attached={"log": b"log"})
    assert waiting_for_more(end, replace(HELD, group="")) is end  # a single job has no group


@pytest.mark.parametrize(
    ("end", "job"),
    [
        (Settled(a_settlement(1.0)), a_job()),
        (Settled(a_settlement(None)), OUTSIDE),
        (Settled(a_settlement(None, outcome=Outcome.CANCELLED)), HELD),
        (Settled(judged_outside(replace(a_trajectory(), stop=StopReason.DEADLINE))), OUTSIDE),
        (Settled(a_settlement(0.0, outcome=Outcome.MODEL_FAILURE, reason="sandbox_broken")), OUTSIDE),
        (HandedOff(b"x"), OUTSIDE),
        (GivenUp("failed", "broke"), OUTSIDE),
    ],
    ids=["own reward", "infrastructure", "cancelled", "expired", "broken by the policy: has its 0", "handed on", "given up"],
)
def test_what_ends_at_once(end: End, job: JobSpec) -> None:
    assert waiting_for_more(end, job) is end
