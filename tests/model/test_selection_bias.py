"""Promise 12 by a virtual clock: over a run, what is trained on is what was sampled.

The bounds are those of an uncancelled run: mean length within 3 %, the longest 5 % within 10 %, slow prompts at least 0.45 of a fair half.
"""

from __future__ import annotations

import pytest

from pipeline.supervisor.step_spec import CancelRule, StepSpec
from tests.model.simulated_fleet import ORACLE, Seen, SimulatedFleet

SEEDS = range(3)


def average(over: float, *, slow: float = 0.0, ahead: int = 0, cancel: CancelRule = CancelRule.DEFAULT, steps: int = 50) -> Seen:
    """Several simulations as one."""
    whole = Seen()
    for seed in SEEDS:
        seen = SimulatedFleet(seed, StepSpec(target=8, n=8, over=over, cancel=cancel), slow=slow, ahead=ahead).run(steps)
        whole.lengths += seen.lengths
        whole.slow += seen.slow
        whole.tokens += seen.tokens
        whole.time += seen.time
        whole.steps += seen.steps
    return whole


@pytest.mark.parametrize("ahead", [0, 1, 4])
@pytest.mark.parametrize("slow", [0.0, 0.5])
@pytest.mark.parametrize("over", [1.0, 1.5, 2.0])
def test_the_default_rule_keeps_length_tail_and_slow_prompts(over: float, slow: float, ahead: int) -> None:
    seen = average(over, slow=slow, ahead=ahead)

    assert abs(seen.mean_length - 1) < 0.03
    assert abs(seen.longest - 1) < 0.10
    if slow:
        assert seen.slow_share >= 0.45


def test_the_default_rule_wastes_nothing_but_filtered_groups() -> None:
    seen = average(1.5)

    assert seen.tokens_a_group < 1.05 * ORACLE


def test_over_sampling_makes_steps_shorter() -> None:
    slow, fast = average(1.0, steps=30), average(2.0, steps=30)

    assert fast.time < 0.6 * slow.time


def test_cancelling_everything_favours_short_members() -> None:
    """What the default rule is there against, and a proof that the bounds above can fail."""
    seen = average(1.5, cancel=CancelRule.ALL)

    assert seen.mean_length < 0.92
    assert seen.longest < 0.5


def test_the_trainer_that_opens_steps_ahead_is_not_waiting_for_the_tail() -> None:
    alone, ahead = average(1.5, slow=0.5, steps=30), average(1.5, slow=0.5, ahead=1, steps=30)

    assert ahead.time < 0.7 * alone.time
