from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.supervisor.replenishment import LOWEST_RATE, informative_rate, wanted_in_flight
from pipeline.supervisor.step_spec import StepSpec
from pipeline.supervisor.views import OpenStep


def a_step(target: int = 8, accepted: int = 0, over: float = 1.0, index: int = 0) -> OpenStep:
    return OpenStep(index=index, spec=StepSpec(target=target, n=8, over=over), accepted=accepted)


def test_the_rate_moves_from_its_prior_to_what_is_seen() -> None:
    assert informative_rate(0, 0) == 2 / 3
    assert abs(informative_rate(35, 100) - 0.35) < 0.02
    assert informative_rate(0, 500) == LOWEST_RATE


def test_one_missing_group_of_many_good_ones_does_not_start_a_batch() -> None:
    """Seven of seven were informative, one is missing, over-sampling 1.5: two in flight, not a new batch of prompts."""
    assert wanted_in_flight([a_step(8, 7, over=1.5)], informative_rate(7, 7)) == [2]
    assert wanted_in_flight([a_step(8, 6, over=1.5)], informative_rate(6, 6)) == [3]


def test_few_bad_groups_are_outvoted_by_the_prior_and_few_good_ones_are_believed() -> None:
    assert informative_rate(0, 2) == 2 / 5
    assert informative_rate(2, 2) == 1.0


def test_as_many_are_in_flight_as_the_filter_rate_asks_for() -> None:
    assert wanted_in_flight([a_step(8)], 0.35) == [23]
    assert wanted_in_flight([a_step(8, over=1.5)], 0.35) == [35]


def test_each_step_ahead_adds_its_own_need() -> None:
    steps = [a_step(8, 6), a_step(8, index=1), a_step(8, 8, index=2)]

    assert wanted_in_flight(steps, 0.5) == [4, 20, 20]


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 120), st.floats(1, 3)), max_size=5), st.floats(LOWEST_RATE, 1.0))
def test_never_fewer_than_the_steps_want_and_never_beyond_the_bound(asked: list[tuple[int, int, float]], rate: float) -> None:
    steps = [a_step(target, accepted, over, index) for index, (target, accepted, over) in enumerate(asked)]
    needed = weighted = 0.0
    for step, wanted in zip(steps, wanted_in_flight(steps, rate), strict=True):
        needed += step.wanting
        weighted += step.wanting * step.spec.over
        assert needed <= wanted <= weighted / rate + 1
